"""One day under one way of scaling."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stream2llm_bench.autoscale.hpa import SYNC_S, Autoscaler, Behavior, Metric, Policy, Rules
from stream2llm_bench.autoscale.serving import STEP_S, Fleet, Hardware, Stream
from stream2llm_bench.autoscale.signals import Signals

REVERSAL_S = 900.0
"""A change in one direction and one back within this time is an oscillation."""
OURS, KV, LOW_KV, QUEUE = "ours", "kv cache", "kv cache, 65 %", "queue"
MINIMUM, MAXIMUM = 1, 12


def _kubernetes_default() -> Behavior:
    """Grow at once, by as many pods as there are or 4; shrink after five minutes."""
    up = Rules(0.0, (Policy(15.0, percent=100.0), Policy(15.0, pods=4)))
    return Behavior(up, Rules(300.0, (Policy(15.0, percent=100.0),)), MINIMUM, MAXIMUM)


def ours() -> Behavior:
    """As `stream2llm_operator.desired.scaling` writes it; a test compares them."""
    up = Rules(0.0, (Policy(240.0, pods=1), Policy(240.0, percent=50.0)))
    return Behavior(up, Rules(600.0, (Policy(300.0, pods=1),)), MINIMUM, MAXIMUM)


@dataclass(frozen=True, slots=True)
class Scaling:
    """A way of scaling: which metrics are read, and how fast it may move."""

    name: str
    behavior: Behavior
    metrics: Callable[[Signals, Fleet, float], Sequence[Metric]]


def _our_metrics(signals: Signals, fleet: Fleet, now_s: float) -> Sequence[Metric]:
    streams = sum(len(pod.streams) for pod in fleet.pods) + len(fleet.waiting)
    return (
        Metric(streams, 128),
        Metric(signals.backlog_s(), 5),
        Metric(signals.kv_usage(), 0.8),
        Metric(signals.preemption(), 1, per_pod=False),
    )


def _kv_metrics(signals: Signals, fleet: Fleet, now_s: float) -> Sequence[Metric]:
    return (Metric(signals.kv_usage(), 0.8),)


def _low_kv_metrics(signals: Signals, fleet: Fleet, now_s: float) -> Sequence[Metric]:
    """With as many pods as ours takes, to see what the signals are worth apart from their number."""
    return (Metric(signals.kv_usage(), 0.65),)


def _queue_metrics(signals: Signals, fleet: Fleet, now_s: float) -> Sequence[Metric]:
    """Requests that have tokens to compute and do not get them: what serving engines call waiting."""
    waiting = sum(
        stream.first_token_s is None and stream.arrived(now_s) - stream.computed >= 1
        for pod in fleet.ready(now_s)
        for stream in pod.streams
    )
    return (Metric(waiting + len(fleet.waiting), 5),)


WAYS = (
    Scaling(OURS, ours(), _our_metrics),
    Scaling(KV, _kubernetes_default(), _kv_metrics),
    Scaling(LOW_KV, _kubernetes_default(), _low_kv_metrics),
    Scaling(QUEUE, _kubernetes_default(), _queue_metrics),
)


@dataclass(slots=True)
class Day:
    """What came of it."""

    ttft_s: list[float] = field(default_factory=list)
    """From the end of a stream's context to its first token."""
    replica_hours: float = 0.0
    waste_hours: float = 0.0
    changes: list[tuple[float, int, int]] = field(default_factory=list)
    """(seconds, pods before, pods after)."""
    unanswered: int = 0

    @property
    def direction_changes(self) -> int:
        """Changes that turn back the one before, however long ago that was."""
        return sum(
            (after - before) * (later - earlier) < 0
            for (_, before, after), (_, earlier, later) in zip(self.changes, self.changes[1:], strict=False)
        )

    @property
    def reversals(self) -> int:
        """Changes that turn back the one before within `REVERSAL_S`."""
        return sum(
            (after - before) * (later - earlier) < 0 and when_s - before_s <= REVERSAL_S
            for (before_s, before, after), (when_s, earlier, later) in zip(self.changes, self.changes[1:], strict=False)
        )


def run(streams: Sequence[Stream], way: Scaling, hardware: Hardware, progress: Callable[[float], None]) -> Day:
    """Serve all streams to their end. progress: told the share that is done."""
    todo = [copy.copy(stream) for stream in reversed(streams)]
    total, fleet, signals = len(todo), Fleet(hardware, MINIMUM), Signals()
    autoscaler, day, now_s, replicas = Autoscaler(way.behavior), Day(), 0.0, MINIMUM
    end_s = streams[-1].finish_s + 3600.0 if streams else 0.0
    wasted: dict[str, float] = {}
    while (todo or fleet.waiting or any(pod.streams for pod in fleet.pods)) and now_s < end_s:
        arriving = []
        while todo and todo[-1].start_s <= now_s:
            arriving.append(todo.pop())
        for stream in fleet.step(now_s, arriving):
            assert stream.first_token_s is not None
            day.ttft_s.append(stream.first_token_s - stream.finish_s)
        day.replica_hours += len(fleet.pods) * STEP_S / 3600
        now_s += STEP_S
        if now_s % SYNC_S == 0:
            ready = fleet.ready(now_s)
            signals.scraped(now_s, [pod.sample(now_s) for pod in ready])
            wasted |= {pod.name: pod.waste_s for pod in ready}
            wanted = autoscaler.decide(now_s, replicas, way.metrics(signals, fleet, now_s))
            if wanted != replicas:
                day.changes.append((now_s, replicas, wanted))
                fleet.scale(now_s, wanted)
                replicas = wanted
        if now_s % 3600 == 0:
            progress(1 - len(todo) / max(total, 1))
    day.waste_hours = sum(wasted.values()) / 3600
    day.unanswered = total - len(day.ttft_s)
    return day
