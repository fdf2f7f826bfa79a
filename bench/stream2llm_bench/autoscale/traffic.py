"""A day of questions: a slow rise and fall, and bursts on top. Pure and seeded."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from stream2llm_bench.autoscale.serving import Stream

HOUR_S = 3600.0
PERIOD_S = 24 * HOUR_S


@dataclass(frozen=True, slots=True)
class Traffic:
    """peak_per_s: streams a second at noon; night: its share at midnight; bursts_per_hour, each `burst_factor` times
    the rate for `burst_s`."""

    peak_per_s: float = 2.0
    night: float = 0.15
    bursts_per_hour: float = 1.0
    burst_s: tuple[float, float] = (120.0, 480.0)
    burst_factor: float = 2.0
    tokens_median: float = 4_000.0
    tokens_sigma: float = 0.6
    retrieval_median_s: float = 20.0
    retrieval_sigma: float = 0.7
    answer_s: tuple[float, float] = (3.0, 12.0)

    def draw(self, seed: int, hours: float = 24.0) -> list[Stream]:
        """Streams in the order of their start, which is up to `hours` after midnight."""
        chooser = random.Random(f"traffic-{seed}")
        end_s = hours * HOUR_S
        bursts, when_s = [], 0.0
        while (when_s := when_s + chooser.expovariate(self.bursts_per_hour / HOUR_S)) < end_s:
            bursts.append((when_s, when_s + chooser.uniform(*self.burst_s)))
        streams, now_s, most = [], 0.0, self.peak_per_s * self.burst_factor
        while (now_s := now_s + chooser.expovariate(most)) < end_s:
            # Thinning: arrivals at the highest rate, of which so many are kept.
            if chooser.random() < self._rate(now_s, bursts) / most:
                streams.append(
                    Stream(
                        now_s,
                        max(int(chooser.lognormvariate(math.log(self.tokens_median), self.tokens_sigma)), 1),
                        max(chooser.lognormvariate(math.log(self.retrieval_median_s), self.retrieval_sigma), 0.1),
                        chooser.uniform(*self.answer_s),
                    )
                )
        return streams

    def _rate(self, now_s: float, bursts: list[tuple[float, float]]) -> float:
        day = 0.5 - 0.5 * math.cos(2 * math.pi * now_s / PERIOD_S)
        rate = self.peak_per_s * (self.night + (1 - self.night) * day)
        return rate * (self.burst_factor if any(start <= now_s < end for start, end in bursts) else 1.0)
