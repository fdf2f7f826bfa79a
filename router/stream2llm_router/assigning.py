"""Which pod gets a new stream. Pure: heartbeats and the time in, a pod out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stream2llm import settings

DEFAULT_PREFILL_TOKENS_PER_S = 1000.0
"""Assumed where a pod has measured nothing; only its ratio between pods matters then, and it is the same for all."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod, as its last heartbeat describes it. `beat_ms` is Redis time."""

    name: str
    incarnation: str
    protocol: int
    state: str
    max_open_streams: int
    open_streams: int
    backlog_tokens: int
    kv_usage: float
    prefill_tokens_per_s: float
    beat_ms: int
    models: frozenset[str] = frozenset()
    url: str = ""
    """Base URL of its HTTP endpoints; empty if it tells none."""

    @property
    def predicted_wait_s(self) -> float:
        """Seconds until a new stream's first token could be computed."""
        return self.backlog_tokens / self.prefill_tokens_per_s


def parse_heartbeat(name: str, raw: bytes) -> Pod | None:
    """The pod of one heartbeat; None if it cannot be read (a pod of another version may write anything)."""
    try:
        beat = json.loads(raw)
        rate = float(beat.get("prefill_tokens_per_s") or DEFAULT_PREFILL_TOKENS_PER_S)
        if not (math.isfinite(rate) and rate > 0):
            rate = DEFAULT_PREFILL_TOKENS_PER_S
        return Pod(
            name,
            str(beat["incarnation"]),
            int(beat["protocol"]),
            str(beat["state"]),
            int(beat["capacity"]["max_open_streams"]),
            int(beat["load"]["open_streams"]),
            int(beat["load"]["backlog_tokens"]),
            float(beat["load"]["kv_usage"]),
            rate,
            int(beat["time_ms"]),
            frozenset(map(str, beat.get("models") or ())),
            str(beat.get("url") or ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        return None


def choose_pod(
    pods: Iterable[Pod],
    now_ms: int,
    recent_opens: Mapping[str, int],
    lapse_ms: int = settings.HEARTBEAT_LAPSE_MS,
    *,
    model: str = "",
) -> Pod | None:
    """The pod with the least predicted wait; ties go to the fewest open streams, the lowest KV use, the name.

    recent_opens: incarnation → streams given to it since its last heartbeat. None if nobody can take a stream: silent,
    draining, full and other-protocol pods get nothing. model: what the open asks for by name; pods that have it come
    first, and if none has it any pod may say so.
    """
    able = [
        pod
        for pod in pods
        if pod.protocol == settings.PROTOCOL_VERSION
        and pod.state == "ready"
        and now_ms - pod.beat_ms < lapse_ms
        and pod.open_streams + recent_opens.get(pod.incarnation, 0) < pod.max_open_streams
    ]
    return min(
        [pod for pod in able if model in pod.models] or able,
        key=lambda pod: (
            pod.predicted_wait_s,
            pod.open_streams + recent_opens.get(pod.incarnation, 0),
            pod.kv_usage,
            pod.name,
        ),
        default=None,
    )
