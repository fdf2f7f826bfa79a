"""What the scheduler counts. Plain numbers, so that they cross the process boundary as they are."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Counters:
    """Totals since the start, except the last group, which are the present state."""

    preemptions_memory: int = 0
    preemptions_policy: int = 0
    recomputed_tokens: int = 0
    prefill_tokens: int = 0
    invalidated_tokens: int = 0
    plan_seconds: float = 0.0
    plans: int = 0
    fast_steps: int = 0
    empty_plan_steps: int = 0
    """Steps in which the plan granted work and nothing ran."""
    fallback_steps: int = 0
    """Steps handed to vLLM's own order after such steps repeated."""
    failed_requests: int = 0
    ignored_operations: int = 0

    open_streams: int = 0
    parked_streams: int = 0
    prefill_backlog_tokens: int = 0
    kv_cache_usage_ratio: float = 0.0
    progress: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Request id → (computed, invalidated) tokens of the streams that moved since the last report."""

    def snapshot(self) -> dict[str, Any]:
        return asdict(self)
