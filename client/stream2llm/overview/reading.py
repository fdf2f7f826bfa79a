"""Reads a pool's present state from Redis: heartbeats, and what waits for each tenant."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import redis

from stream2llm.heartbeats import Pod, parse_heartbeat
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
    found = (parse_heartbeat(_text(name), beats[name]) for name in sorted(beats))
    pods = [pod for pod in found if pod is not None]
    tenants = sorted(name for name in map(_text, members) if TENANT_PATTERN.fullmatch(name))
    pipeline = client.pipeline(transaction=False)
    for tenant in tenants:
        pipeline.xlen(keys.ingress(tenant))
        pipeline.zcard(keys.held(tenant))
    answers = pipeline.execute(raise_on_error=False) if tenants else []
    return Overview(
        keys.pool,
        now_ms,
        tuple(pod_view(pod, now_ms) for pod in pods),
        tuple(
            TenantView(tenant, _count(lag), _count(waiting))
            for tenant, lag, waiting in zip(tenants, answers[::2], answers[1::2], strict=True)
        ),
    )


def pod_view(pod: Pod, now_ms: int) -> PodView:
    """A pod as people see it at `now_ms`, Redis time."""
    silent_ms = max(now_ms - pod.beat_ms, 0)
    return PodView(
        name=pod.name,
        state=SILENT if silent_ms >= HEARTBEAT_LAPSE_MS else pod.state,
        silent_ms=silent_ms,
        open_streams=pod.open_streams,
        max_open_streams=pod.max_open_streams,
        backlog_tokens=pod.backlog_tokens,
        kv_usage=pod.kv_usage,
        prefill_tokens_per_s=pod.prefill_tokens_per_s,
        memory_preemptions=pod.figures.memory_preemptions,
        policy_preemptions=pod.figures.policy_preemptions,
        recomputed_tokens=pod.figures.recomputed_tokens,
        ttft_p50_ms=pod.figures.ttft_p50_ms,
        ttft_p95_ms=pod.figures.ttft_p95_ms,
    )


def _count(answer: Any) -> int:
    """A key of a foreign type is an error of that one answer, and counts nothing."""
    return answer if isinstance(answer, int) else 0


def _text(raw: bytes | str) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
