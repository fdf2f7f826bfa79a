"""What a pod tells of itself each second, as routers decide by it and as people see it. Pure."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

MAX_WHOLE = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Figures:
    """For people; nothing is decided by them. Totals count from the pod's start; None: the pod does not tell."""

    memory_preemptions: int | None = None
    policy_preemptions: int | None = None
    recomputed_tokens: int | None = None
    ttft_p50_ms: float | None = None
    ttft_p95_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod, as its last heartbeat describes it. `beat_ms` is Redis time, `kv_usage` a share of 1."""

    name: str
    incarnation: str
    protocol: int
    state: str
    max_open_streams: int
    open_streams: int
    backlog_tokens: int
    kv_usage: float
    prefill_tokens_per_s: float | None
    """Above 0; None where the pod has measured nothing, or tells something impossible."""
    beat_ms: int
    models: frozenset[str] = frozenset()
    url: str = ""
    """Base URL of its HTTP endpoints; empty if it tells none."""
    fingerprint: str = ""
    figures: Figures = Figures()


def parse_heartbeat(name: str, raw: bytes | str) -> Pod | None:
    """The pod of one heartbeat; None if it cannot be read (a pod of another version may write anything) or shown: names
    and states with control characters would write to the terminals of those who watch."""
    try:
        beat = json.loads(raw)
        if not (name.isprintable() and str(beat["state"]).isprintable()):
            return None
        load = beat["load"]
        rate = _finite(beat.get("prefill_tokens_per_s"))
        return Pod(
            name,
            str(beat["incarnation"]),
            _whole(beat["protocol"]),
            str(beat["state"]),
            _whole(beat["capacity"]["max_open_streams"]),
            _whole(load["open_streams"]),
            _whole(load["backlog_tokens"]),
            min(max(_finite(load["kv_usage"]) or 0.0, 0.0), 1.0),
            rate if rate is not None and rate > 0 else None,
            _whole(beat["time_ms"]),
            frozenset(map(str, beat.get("models") or ())),
            str(beat.get("url") or ""),
            str(beat.get("fingerprint") or ""),
            _figures(beat.get("figures") or {}),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        return None


def _figures(told: Any) -> Figures:
    """None of them if they cannot be read: a pod that can serve is not passed over for what only people look at."""
    try:
        preemptions, ttft = told.get("preemptions") or {}, told.get("ttft_ms") or {}
        return Figures(
            _whole_or_none(preemptions.get("memory")),
            _whole_or_none(preemptions.get("policy")),
            _whole_or_none(told.get("recomputed_tokens")),
            _finite(ttft.get("p50")),
            _finite(ttft.get("p95")),
        )
    except (TypeError, ValueError, AttributeError, OverflowError):
        return Figures()


def _whole_or_none(value: Any) -> int | None:
    return None if value is None else _whole(value)


def _whole(value: Any) -> int:
    """ValueError beyond 64 bits: Python's integers have no end, and no float could hold what is computed from them."""
    number = int(value)
    if abs(number) > MAX_WHOLE:
        raise ValueError("beyond 64 bits")
    return number


def _finite(value: Any) -> float | None:
    number = None if value is None else float(value)
    return number if number is not None and math.isfinite(number) else None
