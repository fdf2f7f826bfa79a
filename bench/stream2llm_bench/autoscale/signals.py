"""The chart's recording rules as pure functions over samples of pods, for runs in simulated time.

`tests/helm/test_rules.py` runs the rules themselves; `tests/bench/autoscale` gives both the same series.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

SCRAPE_S = 15.0
MATURE_S, RATE_S, HOLD_S = 180.0, 120.0, 600.0


@dataclass(frozen=True, slots=True)
class PodSample:
    """What one scrape of a pod gives. Totals count from its start."""

    name: str
    ready_since_s: float
    draining: bool
    waste_total_s: float
    """Time that preemptions for want of memory have cost."""
    preemptions_total: int
    backlog_s: float
    kv_usage: float
    open_streams: int


class Signals:
    """Keeps the samples that the windows reach back to."""

    def __init__(self, waste_target: float = 0.02) -> None:
        self._waste_target = waste_target
        self._scrapes: deque[tuple[float, dict[str, PodSample]]] = deque()

    def scraped(self, now_s: float, samples: Sequence[PodSample]) -> None:
        self._scrapes.append((now_s, {sample.name: sample for sample in samples}))
        while now_s - self._scrapes[0][0] > HOLD_S:
            self._scrapes.popleft()

    def backlog_s(self) -> float | None:
        return self._sum(lambda sample: sample.backlog_s)

    def kv_usage(self) -> float | None:
        return self._sum(lambda sample: sample.kv_usage)

    def preemption(self) -> float | None:
        """1.25: grow; 1: hold, also while no pod is mature; 0: no opinion; None without pods."""
        if not self._scrapes:
            return None
        now_s, latest = self._scrapes[-1]
        mature = [
            sample for sample in latest.values() if not sample.draining and now_s - sample.ready_since_s > MATURE_S
        ]
        if not mature:
            return 1.0 if latest else None
        wasteful = sum(self._waste_ratio(sample.name) > self._waste_target for sample in mature)
        if wasteful > 0 and wasteful >= len(mature) / 2:
            return 1.25
        return 1.0 if any(self._preempted(name) for name in latest) else 0.0

    def _sum(self, figure: object) -> float | None:
        assert callable(figure)
        if not self._scrapes or not self._scrapes[-1][1]:
            return None
        return float(sum(figure(sample) for sample in self._scrapes[-1][1].values()))

    def _waste_ratio(self, name: str) -> float:
        """`rate()` over the samples of the window."""
        now_s = self._scrapes[-1][0]
        within = [
            (when_s, pods[name].waste_total_s)
            for when_s, pods in self._scrapes
            if name in pods and now_s - when_s <= RATE_S
        ]
        if len(within) < 2:
            return 0.0
        (first_s, first), (last_s, last) = within[0], within[-1]
        return (last - first) / (last_s - first_s)

    def _preempted(self, name: str) -> bool:
        totals = [pods[name].preemptions_total for _, pods in self._scrapes if name in pods]
        return totals[-1] > totals[0]
