"""Percentiles of the last minutes, for people who watch a pod; Prometheus has the histograms."""

from __future__ import annotations

from collections import deque

KEPT = 256
WINDOW_S = 600.0


class RecentTimes:
    """The last `KEPT` times of the last `WINDOW_S` seconds, in milliseconds."""

    def __init__(self) -> None:
        self._times: deque[tuple[float, float]] = deque(maxlen=KEPT)

    def note(self, now_s: float, ms: float) -> None:
        self._times.append((now_s, ms))

    def percentiles_ms(self, now_s: float) -> dict[str, float] | None:
        """`p50`, `p95` (nearest rank) and their `count`; None where there is none."""
        while self._times and now_s - self._times[0][0] > WINDOW_S:
            self._times.popleft()
        if not self._times:
            return None
        ordered = sorted(ms for _, ms in self._times)

        def rank(percent: int) -> float:
            return ordered[max(-(-percent * len(ordered) // 100) - 1, 0)]

        return {"p50": rank(50), "p95": rank(95), "count": len(ordered)}
