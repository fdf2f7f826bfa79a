from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm_pod.scheduling.costs import (
    MAX_CORRECTION,
    MIN_CORRECTION,
    Correction,
    CostCurve,
    CostModel,
    Preemption,
    choose,
)

MS = st.floats(0, 1e6, allow_nan=False)
POINTS = st.lists(
    st.tuples(st.integers(1, 200_000), MS), min_size=1, max_size=40, unique_by=lambda point: point[0]
).map(sorted)


def line(ms_per_token: float, overhead_ms: float = 0.0) -> CostCurve:
    return CostCurve([(tokens, overhead_ms + ms_per_token * tokens) for tokens in (16, 1024, 65_536)])


def model(prefill: float = 1.0, swap: float = 0.1) -> CostModel:
    return CostModel(line(prefill), line(swap / 2), line(swap / 2))


# ---------------------------------------------------------------- curves
@pytest.mark.parametrize(
    ("points", "tokens", "expected_ms"),
    [
        # Through the points, and linear between them.
        ([(16, 5.0), (32, 9.0)], 16, 5.0),
        ([(16, 5.0), (32, 9.0)], 32, 9.0),
        ([(16, 5.0), (32, 9.0)], 24, 7.0),
        # Below the first point the first segment goes on, down to an overhead of 1 ms; nothing costs nothing.
        ([(16, 5.0), (32, 9.0)], 8, 3.0),
        ([(16, 5.0), (32, 9.0)], 0, 0.0),
        ([(16, 5.0), (32, 9.0)], -3, 0.0),
        # The overhead is never negative.
        ([(16, 2.0), (32, 9.0)], 8, 1.0),
        # Behind the last point with the last slope.
        ([(16, 5.0), (32, 9.0), (64, 33.0)], 128, 81.0),
        # One point: a line through the origin.
        ([(100, 5.0)], 200, 10.0),
        ([(100, 5.0)], 50, 2.5),
        # Falling medians are pooled: 9 and 5 become 7 and 7.
        ([(16, 9.0), (32, 5.0), (64, 11.0)], 16, 7.0),
        ([(16, 9.0), (32, 5.0), (64, 11.0)], 32, 7.0),
        ([(16, 9.0), (32, 5.0), (64, 11.0)], 1, 7.0),
        # A pooled end does not make longer prompts free: the last slope that rises goes on.
        ([(16, 1.0), (32, 5.0), (64, 8.0), (128, 6.0)], 160, 7.0 + 32 * 2.0 / 32),
        # All equal: flat.
        ([(16, 3.0), (32, 3.0)], 1000, 3.0),
    ],
)
def test_a_curve_goes_through_its_repaired_points(
    points: list[tuple[int, float]], tokens: int, expected_ms: float
) -> None:
    assert CostCurve(points).ms(tokens) == pytest.approx(expected_ms, rel=1e-12)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "at least one point"),
        ([(0, 1.0)], "strictly increasing from 1 on; 0 follows 0"),
        ([(16, 1.0), (16, 2.0)], "16 follows 16"),
        ([(16, -1.0)], "not negative, not -1.0"),
        ([(16, math.nan)], "finite and not negative, not nan"),
        ([(16, math.inf)], "finite and not negative, not inf"),
    ],
)
def test_bad_points_are_refused(points: list[tuple[int, float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CostCurve(points)


@given(POINTS, st.lists(st.floats(0, 400_000), min_size=2, max_size=20).map(sorted))
def test_a_curve_never_falls_and_is_never_negative(points: list[tuple[int, float]], lengths: list[float]) -> None:
    curve = CostCurve(points)
    values = [curve.ms(tokens) for tokens in lengths]
    assert values[0] >= 0
    for shorter, longer in pairwise(values):
        assert longer >= shorter or math.isclose(longer, shorter, rel_tol=1e-9)


@given(POINTS)
def test_points_in_order_are_not_changed(points: list[tuple[int, float]]) -> None:
    values = sorted(ms for _, ms in points)
    rising = [(tokens, ms) for (tokens, _), ms in zip(points, values, strict=True)]
    curve = CostCurve(rising)
    assert [curve.ms(tokens) for tokens, _ in rising] == pytest.approx(values, rel=1e-9, abs=1e-9)


@given(POINTS)
def test_repairing_keeps_the_sum_of_the_points(points: list[tuple[int, float]]) -> None:
    curve = CostCurve(points)
    assert sum(curve.ms(tokens) for tokens, _ in points) == pytest.approx(
        sum(ms for _, ms in points), rel=1e-9, abs=1e-6
    )


@given(POINTS, st.integers(1, 300_000), st.integers(0, 300_000))
def test_spans_add_up_to_the_whole(points: list[tuple[int, float]], tokens: int, cut: int) -> None:
    curve, cut = CostCurve(points), min(cut, tokens)
    parts = curve.overhead_ms + curve.span_ms(0, cut) + curve.span_ms(cut, tokens)
    assert parts == pytest.approx(curve.ms(tokens), rel=1e-9, abs=1e-6)


# ---------------------------------------------------------------- corrections
def test_a_correction_starts_at_one_and_follows_what_is_observed() -> None:
    correction = Correction()
    assert correction.ratio == 1.0
    correction.observe(10.0, 20.0)
    assert correction.ratio == pytest.approx(2**0.1)
    for _ in range(100):
        correction.observe(10.0, 20.0)
    assert correction.ratio == pytest.approx(2.0, rel=1e-4)


def test_one_stall_counts_no_more_than_the_bound() -> None:
    correction = Correction()
    correction.observe(1.0, 1e9)
    assert correction.ratio == pytest.approx(4**0.1)


def test_as_much_faster_cancels_as_much_slower() -> None:
    # The later one weighs more: log2 of the ratio is 0.1, then 0.1 - 0.1 * (1 + 0.1).
    correction = Correction()
    correction.observe(1.0, 2.0)
    correction.observe(2.0, 1.0)
    assert math.log2(correction.ratio) == pytest.approx(-0.01)


@pytest.mark.parametrize(
    ("predicted_ms", "observed_ms"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (math.nan, 1.0), (1.0, math.inf)]
)
def test_an_observation_that_says_nothing_changes_nothing(predicted_ms: float, observed_ms: float) -> None:
    correction = Correction()
    correction.observe(predicted_ms, observed_ms)
    assert correction.ratio == 1.0


@given(st.lists(st.tuples(st.floats(allow_nan=True), st.floats(allow_nan=True)), max_size=200))
def test_a_correction_stays_within_its_bounds(observations: list[tuple[float, float]]) -> None:
    correction = Correction()
    for predicted_ms, observed_ms in observations:
        correction.observe(predicted_ms, observed_ms)
        assert MIN_CORRECTION <= correction.ratio <= MAX_CORRECTION


# ---------------------------------------------------------------- the model
def test_costs_are_read_from_their_curves() -> None:
    costs = CostModel(line(1.0, overhead_ms=10.0), line(0.1), line(0.2))
    assert costs.recompute_ms(1000) == pytest.approx(1010.0)
    assert costs.recompute_ms(1000, kept_tokens=400) == pytest.approx(600.0)
    assert costs.recompute_ms(1000, kept_tokens=1000) == 0.0
    assert costs.recompute_ms(1000, kept_tokens=2000) == 0.0
    assert costs.swap_out_ms(1000) == pytest.approx(100.0)
    assert costs.swap_in_ms(1000) == pytest.approx(200.0)
    assert costs.swap_ms(1000) == pytest.approx(300.0)


def test_a_step_pays_its_overhead_once() -> None:
    costs = CostModel(line(1.0, overhead_ms=10.0), line(0.1), line(0.1))
    assert costs.step_ms([(0, 100), (500, 600), (42, 43)]) == pytest.approx(10.0 + 201.0)
    assert costs.step_ms([]) == 10.0


def test_each_curve_is_corrected_by_its_own_observations() -> None:
    costs = CostModel(line(1.0, overhead_ms=10.0), line(0.1), line(0.2))
    assert costs.corrections == {"prefill": 1.0, "swap_out": 1.0, "swap_in": 1.0}
    for _ in range(200):
        costs.observe_prefill([(0, 50), (100, 150)], 220.0)
        costs.observe_swap_out(1000, 50.0)
        costs.observe_swap_in(1000, 600.0)
    assert costs.corrections == pytest.approx({"prefill": 2.0, "swap_out": 0.5, "swap_in": 3.0}, rel=1e-6)
    assert costs.recompute_ms(1000) == pytest.approx(2020.0)
    assert costs.recompute_ms(1000, kept_tokens=400) == pytest.approx(1200.0)
    assert costs.swap_out_ms(1000) == pytest.approx(50.0)
    assert costs.swap_in_ms(1000) == pytest.approx(600.0)


# ---------------------------------------------------------------- the choice
@pytest.mark.parametrize(
    ("costs", "tokens", "kept_tokens", "swapped_tokens", "has_room", "expected"),
    [
        (model(prefill=1.0, swap=0.1), 1000, 0, 1000, True, Preemption.SWAP),
        (model(prefill=0.1, swap=1.0), 1000, 0, 1000, True, Preemption.RECOMPUTE),
        # No room, or nothing to copy.
        (model(prefill=1.0, swap=0.1), 1000, 0, 1000, False, Preemption.RECOMPUTE),
        (model(prefill=1.0, swap=0.1), 1000, 1000, 0, True, Preemption.RECOMPUTE),
        # What the prefix cache keeps need not be computed again: 50 ms against 100 ms.
        (model(prefill=1.0, swap=0.1), 1000, 950, 1000, True, Preemption.RECOMPUTE),
        (model(prefill=1.0, swap=0.1), 1000, 850, 1000, True, Preemption.SWAP),
        # Equal costs.
        (model(prefill=1.0, swap=1.0), 1000, 0, 1000, True, Preemption.RECOMPUTE),
    ],
)
def test_the_cheaper_way_is_chosen(
    costs: CostModel, tokens: int, kept_tokens: int, swapped_tokens: int, has_room: bool, expected: Preemption
) -> None:
    chosen = choose(costs, tokens=tokens, kept_tokens=kept_tokens, swapped_tokens=swapped_tokens, has_room=has_room)
    assert chosen is expected


@pytest.mark.parametrize("exchanged", [False, True])
def test_the_choice_changes_where_the_curves_cross(exchanged: bool) -> None:
    # Recomputing costs 1 ms a token, a swap 50 ms and 0.5 ms a token: they cross at 100 tokens.
    steep, flat = line(1.0), line(0.25, overhead_ms=25.0)
    half_steep, double_flat = line(0.5), line(0.5, overhead_ms=50.0)
    costs = CostModel(double_flat, half_steep, half_steep) if exchanged else CostModel(steep, flat, flat)
    chosen = {
        tokens: choose(costs, tokens=tokens, swapped_tokens=tokens, has_room=True) for tokens in (10, 99, 101, 5000)
    }
    short, long = (Preemption.SWAP, Preemption.RECOMPUTE) if exchanged else (Preemption.RECOMPUTE, Preemption.SWAP)
    assert chosen == {10: short, 99: short, 101: long, 5000: long}


def test_contention_on_the_bus_turns_the_choice() -> None:
    costs = model(prefill=1.0, swap=0.6)
    assert choose(costs, tokens=1000, swapped_tokens=1000, has_room=True) is Preemption.SWAP
    for _ in range(20):
        costs.observe_swap_out(1000, 900.0)
        costs.observe_swap_in(1000, 900.0)
    assert choose(costs, tokens=1000, swapped_tokens=1000, has_room=True) is Preemption.RECOMPUTE
