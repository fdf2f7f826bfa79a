"""What a simulated run gave, and its summary as `simulate --json` prints it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stream2llm_bench.workloads.streams import Stream

PERCENTILES: Mapping[str, float] = {"p50": 50, "p95": 95, "p99": 99, "p999": 99.9}


@dataclass(slots=True)
class Outcome:
    """One run; lists are in the order of the streams."""

    ttft_s: list[float] = field(default_factory=list)
    """From the arrival of a stream's last message to its first token: the paper's definition."""
    asker_s: list[float] = field(default_factory=list)
    """From the start of its retrieval to its first token: what a person waits."""
    tenants: list[str] = field(default_factory=list)
    completion_s: float = 0.0
    steps: int = 0
    preemptions: dict[str, int] = field(default_factory=dict)
    recomputed_tokens: int = 0
    invalidated_tokens: int = 0
    fallback_steps: int = 0
    unanswered: int = 0
    """Streams for which the engine stood still for ever; only vLLM's own scheduler leaves any."""
    wall_s: float = 0.0

    def answered(self, streams: Sequence[Stream], first_s: Mapping[str, float]) -> Outcome:
        """This outcome, with the times of `streams` whose first tokens came at `first_s`, by name."""
        for stream in streams:
            self.ttft_s.append(first_s[stream.name] - (stream.starts_s + stream.duration_s))
            self.asker_s.append(first_s[stream.name] - stream.starts_s)
            self.tenants.append(stream.tenant)
        self.completion_s = max(first_s.values())
        return self

    def percentile_ms(self, percent: float) -> float:
        return 1e3 * float(np.percentile(self.ttft_s, percent))

    def figures(self) -> dict[str, Any]:
        """All but `wall_s` is the same in every run of the same streams. Times are of those that were answered."""
        figures: dict[str, Any] = {
            "ttft_ms": summary_ms(self.ttft_s),
            "open_to_first_token_ms": summary_ms(self.asker_s),
            "trace_completion_s": round(self.completion_s, 6),
            "preemptions": dict(sorted(self.preemptions.items())),
            "recomputed_tokens": self.recomputed_tokens,
            "invalidated_tokens": self.invalidated_tokens,
            "requests": len(self.ttft_s),
            "steps": self.steps,
            "fallback_steps": self.fallback_steps,
            "wall_s": round(self.wall_s, 2),
        }
        if self.unanswered:
            figures["unanswered"] = self.unanswered
        if len(set(self.tenants)) > 1:
            figures["tenants"] = {
                tenant: {"requests": len(own), "ttft_ms": summary_ms(own)}
                for tenant, own in sorted(_by_tenant(self.tenants, self.ttft_s).items())
            }
        return figures


def summary_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles, mean and maximum, in milliseconds, of the finite ones."""
    values = 1e3 * np.asarray(seconds)
    values = values[np.isfinite(values)]
    if not len(values):
        return {}
    percentiles = {name: round(float(np.percentile(values, percent)), 6) for name, percent in PERCENTILES.items()}
    return {**percentiles, "mean": round(float(values.mean()), 6), "max": round(float(values.max()), 6)}


def _by_tenant(tenants: Sequence[str], values: Sequence[float]) -> dict[str, list[float]]:
    grouped: dict[str, list[float]] = {}
    for tenant, value in zip(tenants, values, strict=True):
        grouped.setdefault(tenant, []).append(value)
    return grouped
