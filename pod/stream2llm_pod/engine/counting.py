"""What the scheduler counts. Plain numbers, so that they cross the process boundary as they are."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Totals since the start; then what happened since the last report; then the present state."""

    preemptions_memory: int = 0
    """KV blocks were short."""
    preemptions_policy: int = 0
    """Only a run slot was short, and the policy preferred somebody else."""
    recomputed_tokens: int = 0
    prefill_tokens: int = 0
    invalidated_tokens: int = 0
    plan_seconds: float = 0.0
    plans: int = 0
    fast_steps: int = 0
    """Steps in which there was nothing to decide."""
    empty_plan_steps: int = 0
    """Steps in which the plan granted work and nothing ran."""
    fallback_steps: int = 0
    """Steps handed to vLLM's own order after such steps repeated."""
    internal_errors: int = 0
    """Exceptions of ours that were caught; each costs one stream or one plan, never the engine."""
    failed_requests: int = 0
    ignored_operations: int = 0

    plan_durations_s: list[float] = field(default_factory=list)
    """One for each plan since the last report, at most `MAX_DURATIONS`."""
    progress: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Request id → (computed, invalidated) tokens of the streams that moved since the last report."""

    open_streams: int = 0
    parked_streams: int = 0
    prefill_backlog_tokens: int = 0
    kv_cache_usage_ratio: float = 0.0

    def planned(self, duration_s: float) -> None:
        self.plans += 1
        self.plan_seconds += duration_s
        if len(self.plan_durations_s) < MAX_DURATIONS:
            self.plan_durations_s.append(duration_s)


MAX_DURATIONS = 1_000
"""Bounds the list while nobody collects it (an engine without statistics)."""
