"""Drives an engine core on the simulated executor through virtual time: what happens when, and steps in between."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from stream2llm_pod.engine.simulation.clock import SimulatedClock

EMPTY_STEPS = 5
"""Steps in a row that compute nothing before time moves on: the scheduler may need some to sort itself out."""
WAIT_S = 0.01
MAX_WAITS = 20_000
"""With nothing to come, how often `WAIT_S` passes before the engine counts as stuck. Residency and ageing end by the
mere passing of time, within minutes."""


class Stuck(RuntimeError):
    """Work is left, no step does any of it, and nothing is to come that could change that."""


class VirtualTime:
    """Events in the order of their times, those of one time in the order they were given.

    An event that falls into a step takes effect after it, as what reaches a real engine does. While the engine has
    nothing to do, or only empty steps, time jumps to the next event.
    """

    def __init__(self, core: Any, on_output: Callable[[Any, float], None]) -> None:
        """core: vLLM's engine core on a `SimulatedExecutor`, whose clock is also the scheduler's; on_output: called
        with each of its outputs for a request and the time, in seconds, at which its step has ended."""
        self._core = core
        self._on_output = on_output
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0
        self.clock: SimulatedClock = core.model_executor.clock
        self.steps = 0
        """Those that computed something."""

    def at(self, when_s: float, action: Callable[[], None]) -> None:
        """Call `action` at `when_s`; at once, before the next step, if that is past."""
        heapq.heappush(self._events, (when_s, self._numbers, action))
        self._numbers += 1

    def run(self) -> None:
        """Until nothing is to come and the engine has nothing to do. Raises Stuck."""
        empty = waits = 0
        while True:
            while self._events and self._events[0][0] <= self.clock():
                heapq.heappop(self._events)[2]()
                empty = waits = 0
            busy = self._core.scheduler.has_requests() or self._core.batch_queue
            if busy and empty < EMPTY_STEPS:
                empty = 0 if self._step() else empty + 1
            elif self._events:
                self.clock.advance_to(self._events[0][0])
            elif not busy:
                return
            elif waits < MAX_WAITS:
                self.clock.advance(WAIT_S)
                waits, empty = waits + 1, EMPTY_STEPS - 1
            else:
                raise Stuck(f"{len(self._core.scheduler.requests)} requests are left and no step does anything")

    def _step(self) -> bool:
        outputs, executed = self._core.step_fn()
        self._core.post_step(executed)
        self.steps += bool(executed)
        for of_client in (outputs or {}).values():
            for output in of_client.outputs:
                self._on_output(output, self.clock())
        return bool(executed)
