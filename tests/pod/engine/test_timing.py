"""Which steps are timed, and what a step's time is while another is under way."""

from __future__ import annotations

import pytest

from stream2llm_pod.engine.timing import StepTimes, substantial

SPANS = [(0, 128)]


def test_one_step_after_another() -> None:
    times = StepTimes()
    times.left("a", SPANS, 1.0)
    assert times.ended("a", 1.25) == (SPANS, 250.0)
    times.left("b", SPANS, 2.0)
    assert times.ended("b", 2.5) == (SPANS, 500.0)


def test_a_step_that_waits_for_the_one_before_begins_when_that_ends() -> None:
    times = StepTimes()
    times.left("a", SPANS, 1.0)
    times.left("b", SPANS, 1.1)
    assert times.ended("a", 1.5) == (SPANS, 500.0)
    assert times.ended("b", 1.75) == (SPANS, 250.0)


def test_a_step_without_spans_is_not_timed_and_delays_the_next() -> None:
    times = StepTimes()
    times.left("a", (), 1.0)
    times.left("b", SPANS, 1.0)
    assert times.ended("a", 1.5) is None
    assert times.ended("b", 1.75) == (SPANS, 250.0)


def test_one_that_never_came_back_is_passed_over() -> None:
    times = StepTimes()
    times.left("lost", SPANS, 1.0)
    times.left("b", SPANS, 2.0)
    assert times.ended("b", 2.5) == (SPANS, 500.0)
    assert times.ended("unknown", 3.0) is None


@pytest.mark.parametrize(
    ("spans", "step_tokens", "timed"),
    [
        ([(0, 64)], 64, True),
        ([(0, 63)], 63, False),
        ([(100, 190)], 100, True),
        ([(100, 189)], 100, False),
        ([(0, 50), (10, 60)], 101, True),
        ([], 0, False),
    ],
)
def test_a_step_tells_about_prefill_if_it_does_little_else(
    spans: list[tuple[int, int]], step_tokens: int, timed: bool
) -> None:
    assert substantial(spans, step_tokens) is timed
