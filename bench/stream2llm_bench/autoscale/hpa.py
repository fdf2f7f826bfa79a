"""The algorithm of Kubernetes' HorizontalPodAutoscaler on external metrics, as its documentation describes it. Pure.

Source: "Horizontal Pod Autoscaling" in the Kubernetes documentation (algorithm details, configurable scaling behavior).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

SYNC_S = 15.0
TOLERANCE = 0.1


@dataclass(frozen=True, slots=True)
class Metric:
    """One external metric. value: None where it is missing; per_pod: AverageValue, else Value."""

    value: float | None
    target: float
    per_pod: bool = True


@dataclass(frozen=True, slots=True)
class Policy:
    """At most so much in a period: so many pods, or so many percent of the pods at its start."""

    period_s: float
    pods: int = 0
    percent: float = 0.0


@dataclass(frozen=True, slots=True)
class Rules:
    """One direction. The policy that allows most counts."""

    window_s: float
    policies: Sequence[Policy]


@dataclass(frozen=True, slots=True)
class Behavior:
    """Both directions and the bounds."""

    up: Rules
    down: Rules
    minimum: int
    maximum: int


def recommendation(metrics: Sequence[Metric], replicas: int) -> int | None:
    """The largest of what the metrics ask for; None to hold: all are missing, or one is and the others ask for less."""
    asked = [_asked(metric, replicas) for metric in metrics if metric.value is not None]
    if not asked:
        return None
    most = max(asked)
    return None if len(asked) < len(metrics) and most < replicas else most


def _asked(metric: Metric, replicas: int) -> int:
    assert metric.value is not None
    ratio = metric.value / (metric.target * replicas) if metric.per_pod else metric.value / metric.target
    if abs(ratio - 1.0) <= TOLERANCE:
        return replicas
    return math.ceil(metric.value / metric.target) if metric.per_pod else math.ceil(ratio * replicas)


class Autoscaler:
    """Remembers recommendations and changes, as the controller does."""

    def __init__(self, behavior: Behavior) -> None:
        self._behavior = behavior
        self._recommended: deque[tuple[float, int]] = deque()
        self._ups: deque[tuple[float, int]] = deque()
        self._downs: deque[tuple[float, int]] = deque()

    def decide(self, now_s: float, replicas: int, metrics: Sequence[Metric]) -> int:
        """The number of pods from now on. replicas: at least 1, the number until now; call it every `SYNC_S`."""
        asked = recommendation(metrics, replicas)
        if asked is None:
            return replicas
        wanted = self._stabilized(now_s, replicas, asked)
        if wanted > replicas:
            wanted = min(wanted, max(self._limit_up(now_s, replicas), replicas))
        elif wanted < replicas:
            wanted = max(wanted, min(self._limit_down(now_s, replicas), replicas))
        wanted = min(max(wanted, self._behavior.minimum, 1), self._behavior.maximum)
        if wanted > replicas:
            self._ups.append((now_s, wanted - replicas))
        elif wanted < replicas:
            self._downs.append((now_s, replicas - wanted))
        return wanted

    def _stabilized(self, now_s: float, replicas: int, asked: int) -> int:
        """Never more than the least asked for in the window of growing, nor less than the most in that of shrinking."""
        self._recommended.append((now_s, asked))
        up_s, down_s = self._behavior.up.window_s, self._behavior.down.window_s
        while self._recommended and now_s - self._recommended[0][0] > max(up_s, down_s):
            self._recommended.popleft()
        least = min(count for when_s, count in self._recommended if now_s - when_s <= up_s)
        most = max(count for when_s, count in self._recommended if now_s - when_s <= down_s)
        if replicas < least:
            return least
        return most if replicas > most else replicas

    def _limit_up(self, now_s: float, replicas: int) -> int:
        limits = []
        for policy in self._behavior.up.policies:
            start = replicas - _changed(self._ups, now_s, policy) + _changed(self._downs, now_s, policy)
            limits.append(start + policy.pods if policy.pods else math.ceil(start * (1 + policy.percent / 100)))
        return max(limits)

    def _limit_down(self, now_s: float, replicas: int) -> int:
        limits = []
        for policy in self._behavior.down.policies:
            start = replicas + _changed(self._downs, now_s, policy) - _changed(self._ups, now_s, policy)
            limits.append(start - policy.pods if policy.pods else int(start * (1 - policy.percent / 100)))
        return min(limits)


def _changed(events: deque[tuple[float, int]], now_s: float, policy: Policy) -> int:
    return sum(count for when_s, count in events if now_s - when_s < policy.period_s)
