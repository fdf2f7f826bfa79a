"""Step times, fitted to measured steps."""

from __future__ import annotations

import random

import pytest

from stream2llm_bench.align.fitting import Step, StepTime, fit

TRUE = StepTime(20.0, 2000.0, 300.0)


def measured(truth: StepTime, count: int = 60, spread: float = 0.0, seed: int = 1) -> list[Step]:
    """Steps of one to three requests, timed as `truth` says but for a factor within 1 ± spread."""
    chooser = random.Random(seed)
    steps = []
    for _ in range(count):
        starts = [chooser.randrange(1000) for _ in range(chooser.randint(1, 3))]
        step = Step(tuple((start, start + chooser.randint(1, 80)) for start in starts), 1.0)
        steps.append(Step(step.spans, truth.ms(step) * chooser.uniform(1 - spread, 1 + spread)))
    return steps


def test_what_made_the_times_is_found_again() -> None:
    found = fit(measured(TRUE))
    assert (found.step_ms, found.token_us, found.pair_ns) == pytest.approx((20.0, 2000.0, 300.0))
    assert max(abs(error) for error in found.errors(measured(TRUE, seed=2))) < 1e-6


def test_a_few_stalls_of_the_machine_move_it_little() -> None:
    steps = measured(TRUE, spread=0.05)
    stalled = [Step(step.spans, step.ms * (20 if i % 10 == 0 else 1)) for i, step in enumerate(steps)]
    found = fit(stalled)
    errors = [abs(found.ms(step) / TRUE.ms(step) - 1) for step in measured(TRUE, seed=3)]
    assert max(errors) < 0.1


def test_no_figure_is_below_zero() -> None:
    steps = measured(StepTime(50.0, 0.0, 0.0), spread=0.3)
    found = fit(steps)
    assert min(found.step_ms, found.token_us, found.pair_ns) >= 0


def test_pairs_are_those_that_attention_looks_at() -> None:
    step = Step(((0, 4), (10, 12)), 1.0)
    assert (step.tokens, step.pairs) == (6, 16 + 44)


def test_two_steps_say_too_little() -> None:
    with pytest.raises(ValueError, match="at least 3 steps are needed to fit their time, not 2"):
        fit(measured(TRUE, count=2))
