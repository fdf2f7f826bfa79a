"""The work queue: which resources need a pass, and when. One at a time for each; asking again meanwhile is kept."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

Key = tuple[str, str]
"""Namespace and name of a resource."""

FIRST_RETRY_S, LAST_RETRY_S = 1.0, 300.0


def retry_delay_s(failures: int) -> float:
    """How long to wait after this many failures in a row: doubled each time, at most five minutes."""
    return float(min(FIRST_RETRY_S * 2 ** min(failures - 1, 20), LAST_RETRY_S))


@dataclass(slots=True)
class WorkQueue:
    """Keys with the time at which each is due. now: seconds of a clock that never goes back.

    `take` hands out a key and remembers that it is at work; `done` says how it went. A key that was added meanwhile is
    due again at once, so that nothing seen during a pass is missed.
    """

    now: Callable[[], float]
    _due: dict[Key, float] = field(default_factory=dict)
    _heap: list[tuple[float, int, Key]] = field(default_factory=list)
    _at_work: set[Key] = field(default_factory=set)
    _again: dict[Key, float] = field(default_factory=dict)
    _failures: dict[Key, int] = field(default_factory=dict)
    _order: itertools.count[int] = field(default_factory=itertools.count)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, key: Key, delay_s: float = 0.0) -> None:
        """Ask for a pass. The earliest time that was asked for holds."""
        due = self.now() + delay_s
        if key in self._at_work:
            self._again[key] = min(due, self._again.get(key, due))
        elif due < self._due.get(key, float("inf")):
            self._due[key] = due
            heapq.heappush(self._heap, (due, next(self._order), key))
            self._changed.set()

    def take(self) -> Key | None:
        """A key that is due, or None."""
        while self._heap and self._heap[0][0] <= self.now():
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                del self._due[key]
                self._at_work.add(key)
                return key
        return None

    def done(self, key: Key, *, failed: bool = False, again_s: float | None = None) -> None:
        """The pass has ended. again_s: when the next one is due if nothing happens before."""
        self._at_work.discard(key)
        if failed:
            self._failures[key] = self._failures.get(key, 0) + 1
            delay_s = retry_delay_s(self._failures[key])
            again_s = delay_s if again_s is None else min(delay_s, again_s)
            # What was seen meanwhile must not turn a failing pass into a busy loop.
            self._again.pop(key, None)
        else:
            self._failures.pop(key, None)
        if (due := self._again.pop(key, None)) is not None:
            self.add(key, max(due - self.now(), 0.0))
        if again_s is not None:
            self.add(key, again_s)

    def forget(self, key: Key) -> None:
        """The resource is gone."""
        self._due.pop(key, None)
        self._failures.pop(key, None)

    def lag_s(self) -> float:
        """For how long the key that has waited longest has been due; 0 if none is due."""
        return max(self.now() - min(self._due.values(), default=self.now()), 0.0)

    def __len__(self) -> int:
        return len(self._due) + len(self._at_work)

    async def get(self) -> Key:
        """Wait for a key that is due."""
        while True:
            self._changed.clear()
            if (key := self.take()) is not None:
                return key
            wait_s = max(self._heap[0][0] - self.now(), 0.0) if self._heap else None
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue
