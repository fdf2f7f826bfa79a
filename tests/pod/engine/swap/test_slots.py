"""The host pool's slots: none is handed out twice, none is lost, none is handed out again within a step."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stream2llm_pod.engine.swap.runs import slot_runs
from stream2llm_pod.engine.swap.slots import HostSlots


def test_a_request_gets_one_run_where_there_is_one() -> None:
    slots = HostSlots(10)
    first, second, third = slots.take(3), slots.take(2), slots.take(5)
    assert (first, second, third) == ([0, 1, 2], [3, 4], [5, 6, 7, 8, 9])
    slots.give_back([0, 1, 2])
    slots.give_back([5, 6, 7, 8, 9])
    slots.step_sealed()
    # The shortest that is long enough, so that the longer one stays whole.
    assert slots.take(2) == [0, 1]
    assert slots.take(5) == [5, 6, 7, 8, 9]


def test_the_longest_runs_are_joined_where_none_suffices() -> None:
    slots = HostSlots(9)
    slots.take(9)
    slots.give_back([0, 4, 5, 8])
    slots.step_sealed()
    assert slots.take(3) == [4, 5, 0]
    assert slots.free == 1


def test_neighbours_become_one_run() -> None:
    slots = HostSlots(6)
    slots.take(6)
    for returned in ([4], [1, 0], [5, 3], [2]):
        slots.give_back(returned)
        slots.step_sealed()
    assert slots.take(6) == [0, 1, 2, 3, 4, 5]


def test_what_comes_back_is_not_handed_out_in_the_same_step() -> None:
    slots = HostSlots(2)
    slots.take(2)
    slots.give_back([0, 1])
    assert slots.take(1) is None
    slots.step_sealed()
    assert slots.take(1) == [0]


@pytest.mark.parametrize("total", [0, 1])
def test_tiny_pools(total: int) -> None:
    slots = HostSlots(total)
    assert slots.take(0) == []
    assert slots.take(total) == list(range(total))
    assert slots.take(1) is None


def test_a_negative_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative, not -1"):
        HostSlots(-1)


@given(st.lists(st.integers(0, 20)))
def test_runs_cover_everything_in_order(slots: list[int]) -> None:
    runs = list(slot_runs(slots))
    assert [slot for start, end in runs for slot in slots[start:end]] == slots
    for start, end in runs:
        assert slots[start:end] == list(range(slots[start], slots[start] + end - start))
    for (_, end), (start, _) in itertools.pairwise(runs):
        assert end == start
        assert slots[start] != slots[end - 1] + 1


class Slots(RuleBasedStateMachine):
    """Against a plain set of free slots."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = HostSlots(12)
        self.free = set(range(12))
        self.returning: set[int] = set()
        self.taken: list[list[int]] = []

    @rule(count=st.integers(0, 8))
    def take(self, count: int) -> None:
        got = self.slots.take(count)
        if count > len(self.free):
            assert got is None
            return
        assert got is not None
        assert len(got) == len(set(got)) == count
        assert set(got) <= self.free
        self.free -= set(got)
        if got:
            self.taken.append(got)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        held = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        kept = data.draw(st.integers(0, len(held) - 1))
        self.slots.give_back(held[kept:])
        self.returning |= set(held[kept:])
        if kept:
            self.taken.append(held[:kept])

    @rule()
    def seal(self) -> None:
        self.slots.step_sealed()
        self.free |= self.returning
        self.returning = set()

    @invariant()
    def counts_agree(self) -> None:
        assert self.slots.free == len(self.free)
        assert self.slots.returning == len(self.returning)


TestSlots = Slots.TestCase
