"""Which slots of the host pool are free. Pure bookkeeping; a slot holds one KV block of every layer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable


class HostSlots:
    """Hands out slots in runs as long as possible, because a run is one copy.

    A slot given back is not handed out again before `step_sealed`. A step copies out before it copies in, so within one
    step a slot that is still read must not be written; from one step to the next, every worker copies in order.
    """

    def __init__(self, slots: int) -> None:
        """slots: how many there are. ValueError if that is negative."""
        if slots < 0:
            raise ValueError(f"slots must not be negative, not {slots}")
        self.total = slots
        self.free = slots
        """Slots that can be had now."""
        self._runs: list[tuple[int, int]] = [(0, slots)] if slots else []
        """Free slots as (first, end), sorted, no two of them adjacent."""
        self._returning: list[int] = []

    @property
    def returning(self) -> int:
        """Slots given back in the step that is being put together."""
        return len(self._returning)

    def take(self, count: int) -> list[int] | None:
        """`count` slots, or None (and nothing taken) if fewer are free.

        They are the shortest run that is long enough, or else the longest runs there are.
        """
        if count > self.free:
            return None
        taken: list[int] = []
        while len(taken) < count:
            missing = count - len(taken)
            fitting = [run for run in self._runs if run[1] - run[0] >= missing]
            first, end = min(fitting, key=_length) if fitting else max(self._runs, key=_length)
            position = bisect_left(self._runs, (first, end))
            last = min(end, first + missing)
            if last == end:
                del self._runs[position]
            else:
                self._runs[position] = (last, end)
            taken.extend(range(first, last))
        self.free -= count
        return taken

    def give_back(self, slots: Iterable[int]) -> None:
        self._returning.extend(slots)

    def step_sealed(self) -> None:
        """The copies of this step are fixed: what was given back can be had in the next one."""
        for first, end in _runs_of(sorted(self._returning)):
            self._insert(first, end)
        self.free += len(self._returning)
        self._returning.clear()

    def _insert(self, first: int, end: int) -> None:
        position = bisect_left(self._runs, (first, end))
        if position < len(self._runs) and self._runs[position][0] == end:
            end = self._runs.pop(position)[1]
        if position and self._runs[position - 1][1] == first:
            position -= 1
            first = self._runs.pop(position)[0]
        self._runs.insert(position, (first, end))


def _length(run: tuple[int, int]) -> int:
    return run[1] - run[0]


def _runs_of(ordered: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for slot in ordered:
        if runs and runs[-1][1] == slot:
            runs[-1] = (runs[-1][0], slot + 1)
        else:
            runs.append((slot, slot + 1))
    return runs
