"""Slices of block copies in which the slots follow one another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def slot_runs(slots: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(start, end) for each longest stretch with `slots[i + 1] == slots[i] + 1`."""
    start = 0
    for position in range(1, len(slots) + 1):
        if position == len(slots) or slots[position] != slots[position - 1] + 1:
            yield start, position
            start = position
