"""What the scheduler counts. Plain numbers, so that they cross the process boundary as they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

from stream2llm_pod.scheduling.costs import Preemption

CAUSES = ("memory", "policy")
"""KV blocks were short; or only a run slot was, and the policy preferred somebody else."""
DIRECTIONS = ("out", "in")
CURVES = ("prefill", "swap_out", "swap_in")
PREEMPTIONS = tuple(product(map(str, Preemption), CAUSES))

PLAIN_TOTALS = (
    "recomputed_tokens",
    "prefill_tokens",
    "invalidated_tokens",
    "empty_plan_steps",
    "fallback_steps",
    "internal_errors",
    "failed_requests",
    "ignored_operations",
)
PLAIN_GAUGES = (
    "open_streams",
    "parked_streams",
    "prefill_backlog_tokens",
    "prefill_backlog_seconds",
    "kv_cache_usage_ratio",
)


def named(name: str, *labels: str) -> str:
    """One name for one series of a labelled figure."""
    return ".".join((name, *labels))


TOTALS = frozenset(
    (
        *PLAIN_TOTALS,
        *(named("preemptions", *labels) for labels in PREEMPTIONS),
        *(named("preemption_cost_seconds", *labels) for labels in PREEMPTIONS),
        *(named("swapped_bytes", direction) for direction in DIRECTIONS),
    )
)
GAUGES = frozenset((*PLAIN_GAUGES, *(named("correction", curve) for curve in CURVES)))


@dataclass(slots=True)
class Counters:
    """Totals since the start; then what happened since the last report; then the present state."""

    preemptions: dict[tuple[str, str], int] = field(default_factory=lambda: dict.fromkeys(PREEMPTIONS, 0))
    """(kind, cause) → how many."""
    preemption_cost_s: dict[tuple[str, str], float] = field(default_factory=lambda: dict.fromkeys(PREEMPTIONS, 0.0))
    """As predicted when they were decided, from the cost profile or from what was seen; 0 while neither is known."""
    swapped_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DIRECTIONS, 0))
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
    prefill_backlog_seconds: float = 0.0
    """As the cost profile predicts, or as prefill was seen to take; 0 while neither is known."""
    kv_cache_usage_ratio: float = 0.0
    corrections: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CURVES, 0.0))
    """Observed ÷ predicted by curve, as far as it has been learnt; 0 without a cost profile."""

    def preempted(self, kind: str, cause: str, cost_ms: float) -> None:
        self.preemptions[kind, cause] += 1
        self.preemption_cost_s[kind, cause] += cost_ms / 1e3

    def figures(self) -> dict[str, float]:
        """All of `TOTALS` and `GAUGES` by name."""
        figures: dict[str, float] = {name: getattr(self, name) for name in (*PLAIN_TOTALS, *PLAIN_GAUGES)}
        for labels in PREEMPTIONS:
            figures[named("preemptions", *labels)] = self.preemptions[labels]
            figures[named("preemption_cost_seconds", *labels)] = self.preemption_cost_s[labels]
        figures |= {named("swapped_bytes", name): value for name, value in self.swapped_bytes.items()}
        figures |= {named("correction", name): value for name, value in self.corrections.items()}
        return figures

    def planned(self, duration_s: float) -> None:
        self.plans += 1
        self.plan_seconds += duration_s
        if len(self.plan_durations_s) < MAX_DURATIONS:
            self.plan_durations_s.append(duration_s)


MAX_DURATIONS = 1_000
"""Bounds the list while nobody collects it (an engine without statistics)."""
