"""What is published about the two workloads, and what had to be assumed beside it.

Source: the result tables of the artifact of *Stream2LLM* (MLSys 2026; chunk arrival characterization, workload
statistics). Times are milliseconds, sizes tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stream2llm_bench.workloads.distributions import Quantiles

SHARES: Mapping[str, float] = {
    "min": 0.0,
    "p5": 0.05,
    "p25": 0.25,
    "p50": 0.5,
    "p75": 0.75,
    "p95": 0.95,
    "p99": 0.99,
    "max": 1.0,
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One distribution: published figures by name (`mean` and those of `SHARES`), and points assumed to fill the rest
    so that the published mean comes out."""

    published: Mapping[str, float]
    assumed: Mapping[float, float] = field(default_factory=dict)
    """Share of the samples → upper bound."""

    def quantiles(self) -> Quantiles:
        points = dict(self.assumed)
        points.update({SHARES[name]: value for name, value in self.published.items() if name in SHARES})
        return Quantiles(sorted(points.items()))


@dataclass(frozen=True, slots=True)
class Published:
    """One workload. Counts of chunks are published as mean, median and extremes only."""

    gap_ms: Figure
    chunks: Figure
    duration_ms: Figure
    tokens: Figure
    requests: int
    """How many queries the published runs have."""


CRAWLER = Published(
    gap_ms=Figure(
        {
            "min": 3.01,
            "p5": 81.85,
            "p25": 387.12,
            "p50": 700.67,
            "p75": 1339.52,
            "p95": 3077.99,
            "p99": 5293.35,
            "max": 34946.56,
            "mean": 1053.0,
        },
        {0.999: 8000.0},
    ),
    chunks=Figure({"mean": 7.86, "p50": 8.0, "min": 1.0, "max": 17.0}),
    duration_ms=Figure(
        {"p50": 8670.0, "p75": 11059.0, "p95": 16402.0, "max": 49446.6, "mean": 9219.0},
        {0.0: 2000.0, 0.25: 6700.0, 0.99: 22000.0},
    ),
    tokens=Figure(
        {"p50": 5749.0, "p75": 11167.0, "p95": 28372.0, "mean": 8889.0},
        {0.0: 150.0, 0.25: 2500.0, 0.99: 45000.0, 1.0: 90000.0},
    ),
    requests=4309,
)

ANNS = Published(
    gap_ms=Figure(
        {
            "min": 0.21,
            "p5": 1.39,
            "p25": 11.25,
            "p50": 36.68,
            "p75": 124.33,
            "p95": 698.80,
            "p99": 2079.26,
            "max": 8916.65,
            "mean": 157.14,
        },
        {0.999: 2800.0},
    ),
    chunks=Figure({"mean": 4.42, "p50": 4.0, "min": 1.0, "max": 26.0}),
    duration_ms=Figure(
        {"p50": 3896.0, "p75": 5327.0, "p95": 8512.0, "max": 10632.9, "mean": 4471.0},
        {0.0: 1800.0, 0.25: 3300.0},
    ),
    tokens=Figure(
        {"p50": 10126.0, "p75": 14615.0, "p95": 30618.0, "mean": 13006.0},
        {0.0: 1500.0, 0.25: 6800.0, 0.975: 50000.0, 1.0: 100000.0},
    ),
    requests=500,
)
