"""How long a step takes, fitted to measured steps: fixed + per token + per pair of tokens (attention). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

ROUNDS = 30
LEAST_RESIDUAL = 0.01
"""Relative residuals below this weigh alike."""


@dataclass(frozen=True, slots=True)
class Step:
    """One measured step."""

    spans: tuple[tuple[int, int], ...]
    """For each request in it the tokens it computed, from the first up to, and without, the second."""
    ms: float

    @property
    def tokens(self) -> int:
        return sum(end - start for start, end in self.spans)

    @property
    def pairs(self) -> int:
        """Squares of the ends less those of the starts: twice the number of pairs that attention looks at."""
        return sum(end * end - start * start for start, end in self.spans)


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step takes `step_ms + token_us·n/1e3 + pair_ns·p/1e6` milliseconds."""

    step_ms: float
    token_us: float
    pair_ns: float

    def ms(self, step: Step) -> float:
        return self.step_ms + self.token_us * step.tokens / 1e3 + self.pair_ns * step.pairs / 1e6

    def errors(self, steps: Sequence[Step]) -> list[float]:
        """Predicted ÷ measured, less 1, of each step."""
        return [self.ms(step) / step.ms - 1 for step in steps]


def fit(steps: Sequence[Step]) -> StepTime:
    """The least sum of absolute relative errors, with no figure below 0: a few stalls of the machine move it little.

    Iteratively reweighted least squares over every choice of figures that are not 0. ValueError for fewer than three
    steps.
    """
    if len(steps) < 3:
        raise ValueError(f"at least 3 steps are needed to fit their time, not {len(steps)}")
    measured_ms = np.array([step.ms for step in steps])
    features = np.array([(1.0, step.tokens / 1e3, step.pairs / 1e6) for step in steps]) / measured_ms[:, None]
    best: tuple[float, Any] | None = None
    for size in (3, 2, 1):
        for columns in combinations(range(3), size):
            coefficients = np.zeros(3)
            coefficients[list(columns)] = _least_absolute(features[:, columns])
            error = float(np.abs(features @ coefficients - 1).sum())
            if (coefficients >= 0).all() and (best is None or error < best[0]):
                best = error, coefficients
    # One figure alone is always positive, so there is a best.
    assert best is not None
    return StepTime(*(float(value) for value in best[1]))


def _least_absolute(features: Any) -> Any:
    """Coefficients with the least sum of |features · coefficients − 1|."""
    weights = np.ones(len(features))
    coefficients = np.zeros(features.shape[1])
    for _ in range(ROUNDS):
        root = np.sqrt(weights)
        coefficients = np.linalg.lstsq(features * root[:, None], root, rcond=None)[0]
        weights = 1 / np.maximum(np.abs(features @ coefficients - 1), LEAST_RESIDUAL)
    return coefficients
