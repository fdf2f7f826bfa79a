from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm_operator.queueing import LAST_RETRY_S, Key, WorkQueue, retry_delay_s

A, B = ("ns", "a"), ("ns", "b")


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> WorkQueue:
    return WorkQueue(clock)


def test_asked_twice_is_one_pass(queue: WorkQueue) -> None:
    queue.add(A)
    queue.add(A)
    assert queue.take() == A
    assert queue.take() is None


def test_asked_during_a_pass_is_another_pass_and_never_two_at_once(queue: WorkQueue) -> None:
    queue.add(A)
    assert queue.take() == A
    queue.add(A)
    assert queue.take() is None
    queue.done(A)
    assert queue.take() == A
    queue.done(A)
    assert queue.take() is None


def test_earliest_time_holds(queue: WorkQueue, clock: Clock) -> None:
    queue.add(A, 60)
    queue.add(A, 10)
    queue.add(A, 30)
    clock.now_s += 10
    assert queue.take() == A
    queue.done(A)
    clock.now_s += 100
    assert queue.take() is None


def test_failures_wait_longer_and_longer_and_success_forgets_them(queue: WorkQueue, clock: Clock) -> None:
    queue.add(A)
    for expected_s in (1.0, 2.0, 4.0):
        assert queue.take() == A
        queue.done(A, failed=True)
        clock.now_s += expected_s - 0.01
        assert queue.take() is None
        clock.now_s += 0.01
    assert queue.take() == A
    queue.done(A)
    queue.add(A)
    assert queue.take() == A
    queue.done(A, failed=True)
    clock.now_s += 1.0
    assert queue.take() == A


def test_retry_delay_is_bounded() -> None:
    assert [retry_delay_s(failures) for failures in (1, 2, 3, 9, 10, 10_000)] == [
        1,
        2,
        4,
        256,
        LAST_RETRY_S,
        LAST_RETRY_S,
    ]


def test_events_during_a_failing_pass_do_not_make_it_a_busy_loop(queue: WorkQueue, clock: Clock) -> None:
    queue.add(A)
    assert queue.take() == A
    queue.add(A)
    queue.done(A, failed=True)
    assert queue.take() is None
    clock.now_s += 1.0
    assert queue.take() == A


def test_lag_is_that_of_the_longest_waiting(queue: WorkQueue, clock: Clock) -> None:
    assert queue.lag_s() == 0
    queue.add(A, 5)
    queue.add(B, 50)
    clock.now_s += 12
    assert queue.lag_s() == 7
    assert queue.take() == A
    assert queue.lag_s() == 0


async def _gets(queue: WorkQueue) -> list[Key]:
    first = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add(B, 0.01)
    queue.add(A, 0.005)
    found = [await first]
    found.append(await queue.get())
    return found


def test_get_waits_until_something_is_due() -> None:
    assert asyncio.run(asyncio.wait_for(_gets(WorkQueue(time.monotonic)), 10)) == [A, B]


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "take", "done", "fail", "wait"]), st.sampled_from([A, B]), st.integers(0, 5))
    )
)
def test_nothing_that_was_asked_for_is_lost(steps: list[tuple[str, Key, int]]) -> None:
    """After any history, every key that was asked for since its last pass began gets a pass within the longest wait."""
    clock = Clock()
    queue = WorkQueue(clock)
    owed: set[Key] = set()
    at_work: set[Key] = set()
    for what, key, amount in steps:
        if what == "add":
            queue.add(key, amount)
            owed.add(key)
        elif what == "take":
            taken = queue.take()
            if taken is not None:
                assert taken not in at_work
                at_work.add(taken)
                owed.discard(taken)
        elif what in ("done", "fail") and key in at_work:
            at_work.discard(key)
            if what == "fail":
                owed.add(key)
            queue.done(key, failed=what == "fail")
        else:
            clock.now_s += amount
    for key in at_work:
        queue.done(key)
    clock.now_s += LAST_RETRY_S + 5
    while (taken := queue.take()) is not None:
        owed.discard(taken)
        queue.done(taken)
    assert owed == set()
