"""When retrievals begin: a Poisson process from a seed, so that every policy meets the same one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stream2llm_bench.workloads.distributions import Floats


@dataclass(frozen=True, slots=True)
class Bursts:
    """Every `every_s` seconds, `length_s` seconds long, `factor` times as many arrive as in between. The mean rate over
    a whole period is unchanged."""

    every_s: float
    length_s: float
    factor: float

    def __post_init__(self) -> None:
        if not 0 < self.length_s < self.every_s:
            raise ValueError(f"bursts.length_s must be above 0 and below every_s ({self.every_s}), not {self.length_s}")
        if not self.factor >= 1:
            raise ValueError(f"bursts.factor must be at least 1, not {self.factor}")


def poisson(count: int, qps: float, seed: int, bursts: Bursts | None = None) -> Floats:
    """Shape [count], increasing: seconds after the start. ValueError for a rate that is not above 0.

    Without bursts these are the running sums of `RandomState(seed).exponential(1/qps)`, as in the paper's artifact.
    """
    if not (qps > 0 and np.isfinite(qps)):
        raise ValueError(f"qps must be above 0 and finite, not {qps}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must be from 0 to {2**32 - 1}, not {seed}")
    times_s = np.cumsum(np.random.RandomState(seed).exponential(1.0 / qps, count))
    return times_s if bursts is None else _bent(times_s, bursts)


def _bent(times_s: Floats, bursts: Bursts) -> Floats:
    """Time runs slower in bursts, in units of what arrives: the inverse of the integrated rate."""
    calm = bursts.every_s / (bursts.every_s - bursts.length_s + bursts.factor * bursts.length_s)
    in_burst = bursts.length_s * bursts.factor * calm
    periods, rest_s = np.divmod(times_s, bursts.every_s)
    within_s = np.where(
        rest_s < in_burst, rest_s / (bursts.factor * calm), bursts.length_s + (rest_s - in_burst) / calm
    )
    return np.asarray(periods * bursts.every_s + within_s)
