"""Published beside simulated: the error of each cell, and whether the order of things is the same. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stream2llm_bench.paper.published import BASELINES, PERCENTILES, Condition, Row

THIRD = 1 / 3
Times = Mapping[str, Mapping[str, float]]
"""Policy or baseline → percentile → seconds."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One published ratio and ours."""

    condition: Condition
    policy: str
    baseline: str
    percentile: str
    published: float
    ours: float

    @property
    def error(self) -> float:
        """Ours ÷ published, less 1."""
        return self.ours / self.published - 1

    @property
    def within_third(self) -> bool:
        return abs(self.error) <= THIRD

    def figures(self) -> dict[str, Any]:
        return {
            "hardware": self.condition.hardware,
            "workload": self.condition.workload,
            "qps": self.condition.qps,
            "delay": self.condition.delay_multiplier,
            "preemption": self.condition.preemption,
            "policy": self.policy,
            "baseline": self.baseline,
            "percentile": self.percentile,
            "published": self.published,
            "ours": round(self.ours, 4),
            "error": round(self.error, 4),
        }


def cells_of(condition: Condition, row: Row, times_s: Times) -> list[Cell]:
    """All cells of one experiment. times_s: those of each policy and of both baselines."""
    cells = []
    for (policy, baseline, percentile), published in row.ratios.items():
        ours = times_s[baseline][percentile] / times_s[policy][percentile]
        cells.append(Cell(condition, policy, baseline, percentile, published, ours))
    return cells


def baseline_errors(row: Row, times_s: Times) -> dict[str, dict[str, float]]:
    """Our time of each baseline ÷ the published, less 1: what the hardware was calibrated by."""
    return {
        baseline: {name: times_s[baseline][name] / row.baselines_s[baseline][name] - 1 for name in PERCENTILES}
        for baseline in BASELINES
    }


def rank_correlation(cells: Sequence[Cell]) -> float:
    """Spearman's, of published and simulated ratios; equal values share their mean rank. NaN for fewer than two cells,
    or if all of one side are equal."""
    if len(cells) < 2:
        return float("nan")
    published, ours = (_ranks([getattr(cell, name) for cell in cells]) for name in ("published", "ours"))
    if published.std() == 0 or ours.std() == 0:
        return float("nan")
    return float(np.corrcoef(published, ours)[0, 1])


def _ranks(values: Sequence[float]) -> Any:
    _, position, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + ends - 1) / 2)[position]
