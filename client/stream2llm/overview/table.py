"""An overview as text for a terminal. Pure: the overview before gives the rates."""

from __future__ import annotations

from collections.abc import Sequence

from stream2llm.overview.reading import Overview, PodView

_PODS = ("POD", "STATE", "STREAMS", "KV", "BACKLOG", "PREFILL/S", "PREEMPTIONS", "PER MIN", "TTFT P50", "P95")
_TENANTS = ("TENANT", "IN INGRESS", "WAITING")


def render(now: Overview, before: Overview | None = None) -> str:
    """Lines without an end of line at the last. before: an earlier overview of the same pool."""
    waiting = sum(tenant.waiting_streams for tenant in now.tenants)
    streams = sum(pod.open_streams for pod in now.pods)
    ready = sum(pod.state == "ready" for pod in now.pods)
    lines = [
        f"pool {now.pool}: {ready} of {len(now.pods)} pods ready, {streams} open streams, {waiting} waiting",
        "",
    ]
    earlier = {pod.name: pod for pod in before.pods} if before is not None else {}
    minutes = (now.time_ms - before.time_ms) / 60_000 if before is not None else 0.0
    lines += _columns([_PODS, *(_pod_row(pod, earlier.get(pod.name), minutes) for pod in now.pods)], text_columns=2)
    if not now.pods:
        lines.append("(no pod has a heartbeat)")
    lines.append("")
    rows = [(tenant.name, f"{tenant.lag_entries:,}", f"{tenant.waiting_streams:,}") for tenant in now.tenants]
    lines += _columns([_TENANTS, *rows], text_columns=1)
    return "\n".join(lines)


def preemptions_per_minute(now: PodView, before: PodView | None, minutes: float) -> float | None:
    """Of both causes; None without an earlier figure. A pod that has started anew counts from 0."""
    if before is None or minutes <= 0 or now.memory_preemptions is None or before.memory_preemptions is None:
        return None
    total = now.memory_preemptions + (now.policy_preemptions or 0)
    total_before = before.memory_preemptions + (before.policy_preemptions or 0)
    return (total - total_before if total >= total_before else total) / minutes


def _pod_row(pod: PodView, before: PodView | None, minutes: float) -> tuple[str, ...]:
    preemptions = (
        "-"
        if pod.memory_preemptions is None
        else f"{pod.memory_preemptions:,} memory, {pod.policy_preemptions or 0:,} policy"
    )
    per_minute = preemptions_per_minute(pod, before, minutes)
    return (
        pod.name,
        pod.state if pod.silent_ms < 5000 else f"{pod.state} {pod.silent_ms // 1000} s",
        f"{pod.open_streams}/{pod.max_open_streams}",
        f"{pod.kv_usage:.0%}",
        f"{pod.backlog_tokens:,}",
        "-" if pod.prefill_tokens_per_s is None else f"{pod.prefill_tokens_per_s:,.0f}",
        preemptions,
        "-" if per_minute is None else f"{per_minute:.1f}",
        _ms(pod.ttft_p50_ms),
        _ms(pod.ttft_p95_ms),
    )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} ms"


def _columns(rows: Sequence[Sequence[str]], *, text_columns: int) -> list[str]:
    """The first columns to the left, figures to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i < text_columns else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
