"""Is a policy at least as good as the best of the others? Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stream2llm_bench.simulating.artifact import ARTIFACT

PERCENTILES: Mapping[str, float] = {"p50": 50, "p95": 95, "p99": 99}
ORDERS = ("fcfs", "lcas", "lcas-oldest", "mcps", "default")
"""The paper's policies, with both readings of LCAS, in our scheduler."""
RIVALS = (*ORDERS, *ARTIFACT)
"""Those, and the schedulers of its artifact as they are."""
TOLERANCE = 0.03
THROUGHPUT_TOLERANCE = 0.01


@dataclass(slots=True)
class Runs:
    """One policy in one scenario: one figure for each seed."""

    times_ms: dict[str, list[float]] = field(default_factory=dict)
    """Percentile → time to first token."""
    longest_ms: list[float] = field(default_factory=list)
    completion_s: list[float] = field(default_factory=list)

    def add(self, ttft_s: Sequence[float], completion_s: float) -> None:
        """One run's times to first token."""
        for name, percent in PERCENTILES.items():
            self.times_ms.setdefault(name, []).append(1e3 * float(np.percentile(ttft_s, percent)))
        self.longest_ms.append(1e3 * max(ttft_s))
        self.completion_s.append(completion_s)

    def mean_ms(self, percentile: str) -> float:
        return float(np.mean(self.times_ms[percentile]))

    def figures(self) -> dict[str, Any]:
        return {
            "ttft_ms": {name: round(self.mean_ms(name), 2) for name in PERCENTILES},
            "longest_ms": round(max(self.longest_ms), 1),
            "trace_completion_s": round(float(np.mean(self.completion_s)), 2),
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """One policy beside the best of its rivals, percentile by percentile."""

    against_best: Mapping[str, float]
    """Percentile → its mean time ÷ the lowest mean of any rival, which may be another one at each."""
    best: Mapping[str, str]
    completion_against_best: float

    @property
    def at_least_as_good(self) -> bool:
        """Within the tolerance at every percentile, and in throughput."""
        return (
            max(self.against_best.values()) <= 1 + TOLERANCE
            and self.completion_against_best <= 1 + THROUGHPUT_TOLERANCE
        )

    def figures(self) -> dict[str, Any]:
        return {
            "against_best": {name: round(ratio, 4) for name, ratio in self.against_best.items()},
            "best": dict(self.best),
            "completion_against_best": round(self.completion_against_best, 4),
            "at_least_as_good": self.at_least_as_good,
        }


def judge(policy: str, runs: Mapping[str, Runs], rivals: Sequence[str] = RIVALS) -> Verdict:
    """`policy` against those of `rivals` that ran. ValueError if none did."""
    others = [name for name in rivals if name in runs and name != policy]
    if not others:
        raise ValueError(f"none of {', '.join(rivals)} ran beside {policy}")
    best = {name: min(others, key=lambda rival: runs[rival].mean_ms(name)) for name in PERCENTILES}
    completion_s = min(float(np.mean(runs[name].completion_s)) for name in others)
    return Verdict(
        {name: runs[policy].mean_ms(name) / runs[best[name]].mean_ms(name) for name in PERCENTILES},
        best,
        float(np.mean(runs[policy].completion_s)) / completion_s,
    )
