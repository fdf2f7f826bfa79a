"""Reads a pool's present state from Redis: heartbeats, and what waits for each tenant."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import redis

from stream2llm.keys import TENANT_PATTERN, PoolKeys
from stream2llm.settings import HEARTBEAT_LAPSE_MS

SILENT = "silent"
"""State of a pod whose last heartbeat is too old."""


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod as its last heartbeat told it. Totals count from the pod's start; None: the pod does not tell."""

    name: str
    state: str
    silent_ms: int
    open_streams: int
    max_open_streams: int
    backlog_tokens: int
    kv_usage: float
    prefill_tokens_per_s: float | None
    memory_preemptions: int | None
    policy_preemptions: int | None
    recomputed_tokens: int | None
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None


@dataclass(frozen=True, slots=True)
class TenantView:
    """One tenant: entries that no router has taken yet, and streams that wait for a pod."""

    name: str
    lag_entries: int
    waiting_streams: int


@dataclass(frozen=True, slots=True)
class Overview:
    """A pool at one time of the Redis server."""

    pool: str
    time_ms: int
    pods: tuple[PodView, ...]
    tenants: tuple[TenantView, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `stream2llm top --json` and the routers give it."""
        return asdict(self)


def read_overview(client: redis.Redis, keys: PoolKeys) -> Overview:
    """Two round trips. Raises RedisError."""
    pipeline = client.pipeline(transaction=False)
    pipeline.time()
    pipeline.hgetall(keys.pods)
    pipeline.smembers(keys.tenants)
    (seconds, micros), beats, members = pipeline.execute()
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    tenants = sorted(name for name in map(_text, members) if TENANT_PATTERN.fullmatch(name))
    pipeline = client.pipeline(transaction=False)
    for tenant in tenants:
        pipeline.xlen(keys.ingress(tenant))
        pipeline.zcard(keys.held(tenant))
    answers = pipeline.execute(raise_on_error=False) if tenants else []
    return Overview(
        keys.pool,
        now_ms,
        tuple(pod_views({_text(name): beat for name, beat in beats.items()}, now_ms)),
        tuple(
            TenantView(tenant, _count(lag), _count(waiting))
            for tenant, lag, waiting in zip(tenants, answers[::2], answers[1::2], strict=True)
        ),
    )


def pod_views(beats: Mapping[str, bytes | str], now_ms: int) -> Iterable[PodView]:
    """Pods by name, from raw heartbeats; one that cannot be read is left out."""
    for name in sorted(beats):
        try:
            beat = json.loads(beats[name])
            view = _pod_view(name, beat, now_ms)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
        yield view


def _pod_view(name: str, beat: Mapping[str, Any], now_ms: int) -> PodView:
    figures = beat.get("figures") or {}
    preemptions, ttft = figures.get("preemptions") or {}, figures.get("ttft_ms") or {}
    silent_ms = max(now_ms - int(beat["time_ms"]), 0)
    rate = beat.get("prefill_tokens_per_s")
    return PodView(
        name=name,
        state=SILENT if silent_ms >= HEARTBEAT_LAPSE_MS else str(beat["state"]),
        silent_ms=silent_ms,
        open_streams=int(beat["load"]["open_streams"]),
        max_open_streams=int(beat["capacity"]["max_open_streams"]),
        backlog_tokens=int(beat["load"]["backlog_tokens"]),
        kv_usage=_finite(beat["load"]["kv_usage"]) or 0.0,
        prefill_tokens_per_s=_finite(rate),
        memory_preemptions=_whole(preemptions.get("memory")),
        policy_preemptions=_whole(preemptions.get("policy")),
        recomputed_tokens=_whole(figures.get("recomputed_tokens")),
        ttft_p50_ms=_finite(ttft.get("p50")),
        ttft_p95_ms=_finite(ttft.get("p95")),
    )


def _finite(value: Any) -> float | None:
    number = None if value is None else float(value)
    return number if number is not None and math.isfinite(number) else None


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _count(answer: Any) -> int:
    """A key of a foreign type is an error of that one answer, and counts nothing."""
    return answer if isinstance(answer, int) else 0


def _text(raw: bytes | str) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
