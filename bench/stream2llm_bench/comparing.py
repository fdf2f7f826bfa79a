"""Ratios of interleaved pairs: medians with their spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of the ratios within each pair, with their lowest and highest."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"

    @property
    def spread(self) -> list[float]:
        """[lowest, highest]."""
        return [self.low, self.high]


def ratio_of_pairs(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Each numerator by the denominator of its own pair. Raises ValueError unless both are equally long."""
    ratios = [above / below for above, below in zip(numerators, denominators, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))
