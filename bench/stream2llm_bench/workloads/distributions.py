"""Distributions given by their quantiles, and draws that hit them with few samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Quantiles:
    """An inverse distribution function: logarithms are interpolated linearly between known quantiles."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        """points: (share of the samples, their upper bound), both increasing, from share 0 to share 1; bounds above 0.

        Raises ValueError otherwise.
        """
        shares, bounds = np.array([share for share, _ in points]), np.array([bound for _, bound in points])
        if len(points) < 2 or shares[0] != 0 or shares[-1] != 1 or (np.diff(shares) <= 0).any():
            raise ValueError(f"shares must increase from 0 to 1, not {[float(share) for share in shares]}")
        if bounds[0] <= 0 or (np.diff(bounds) < 0).any():
            raise ValueError(f"bounds must be above 0 and not decrease: {[float(bound) for bound in bounds]}")
        self._shares, self._logarithms = shares, np.log(bounds)

    def at(self, shares: Floats) -> Floats:
        """Shape of `shares`: the value below which each share of the samples lies."""
        return np.asarray(np.exp(np.interp(shares, self._shares, self._logarithms)))


def stratified(random: np.random.RandomState, count: int) -> Floats:
    """Shape [count]: uniform shares, one in each `count`-th of 0 to 1, in random order. So even a few samples have the
    quantiles of the distribution."""
    return np.asarray((random.permutation(count) + random.random_sample(count)) / max(count, 1))
