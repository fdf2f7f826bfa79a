"""Costs that are learnt while serving."""

from __future__ import annotations

import math

import pytest

from stream2llm_pod.scheduling.costs import Preemption
from stream2llm_pod.scheduling.learnt import LearntCosts
from stream2llm_pod.scheduling.victims import Preemptions


def test_nothing_is_known_at_first() -> None:
    costs = LearntCosts()
    assert (costs.recompute_ms(100), costs.swap_ms(100), costs.prefill_ms([(0, 100)])) == (0.0, 0.0, 0.0)


def test_the_first_observation_counts_whole_and_later_ones_a_tenth() -> None:
    costs = LearntCosts()
    costs.observe_prefill([(0, 60), (100, 140)], 200.0)
    assert costs.recompute_ms(30, 20) == 20.0
    costs.observe_prefill([(0, 100)], 300.0)
    assert costs.prefill_ms([(5, 10), (0, 5)]) == pytest.approx(21.0)


def test_a_swap_costs_both_ways() -> None:
    costs = LearntCosts()
    costs.observe_swap_out(10, 5.0)
    costs.observe_swap_in(10, 10.0)
    assert costs.swap_ms(4) == 6.0


@pytest.mark.parametrize(("tokens", "ms"), [(0, 1.0), (10, 0.0), (10, -1.0), (10, math.inf), (10, math.nan)])
def test_an_observation_that_says_nothing_is_left_out(tokens: int, ms: float) -> None:
    costs = LearntCosts()
    costs.observe_prefill([(0, 10)], 10.0)
    costs.observe_prefill([(0, tokens)], ms)
    assert costs.recompute_ms(10) == 10.0


def test_what_was_kept_is_not_computed_again() -> None:
    costs = LearntCosts()
    costs.observe_prefill([(0, 10)], 10.0)
    assert costs.recompute_ms(10, 12) == 0.0


def test_figures_come_from_what_was_learnt_where_there_is_no_profile() -> None:
    preemptions = Preemptions("recompute", None, lambda _: False)
    assert preemptions.cost_ms(Preemption.RECOMPUTE, 50, 10) == 0.0
    preemptions.figures.observe_prefill([(0, 100)], 50.0)
    assert preemptions.cost_ms(Preemption.RECOMPUTE, 50, 10) == 20.0
    # Nothing is decided by it.
    assert preemptions.price(50, 10) == 40.0
