from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm_pod.profiling.budgeting import MAX_SAMPLES, SLACK, Predictor, lengths_to_measure, samples_to_take


@pytest.mark.parametrize(
    ("block_size", "longest", "expected"),
    [
        (16, 100, [16, 32, 64, 100]),
        (16, 128, [16, 32, 64, 128]),
        (32, 255, [32, 64, 128, 255]),
        (48, 200, [64, 128, 200]),
        (16, 10, [10]),
        (16, 0, []),
    ],
)
def test_lengths_are_powers_of_two_and_the_longest(block_size: int, longest: int, expected: list[int]) -> None:
    assert lengths_to_measure(block_size, longest) == expected


def test_nothing_known_predicts_nothing() -> None:
    assert Predictor().seconds(1024) == 0.0


def test_a_prediction_follows_the_growth_seen_last() -> None:
    predictor = Predictor()
    predictor.observe(1024, 4.0)
    assert predictor.seconds(2048) == pytest.approx(8.0)
    predictor.observe(2048, 12.0)
    assert predictor.seconds(4096) == pytest.approx(36.0)
    assert predictor.seconds(8192) == pytest.approx(108.0)


def test_a_prediction_never_grows_less_than_the_length_nor_more_than_its_square() -> None:
    flat, steep = Predictor(), Predictor()
    for tokens, flat_s, steep_s in ((16, 1.0, 1.0), (32, 1.0, 100.0)):
        flat.observe(tokens, flat_s)
        steep.observe(tokens, steep_s)
    assert flat.seconds(64) == pytest.approx(2.0)
    assert steep.seconds(64) == pytest.approx(400.0)


@pytest.mark.parametrize(
    ("predicted_s", "remaining_s", "warm_up", "expected"),
    [
        # Cheap beside all that is left: as many as there may be.
        ([0.1, 1.0], 100.0, True, MAX_SAMPLES),
        ([0.0, 0.0], 1.0, True, MAX_SAMPLES),
        # One sample of the longer lengths is kept free: (100 - 1.15 * 40) / (1.15 * 10) = 4.7, one of them warm-up.
        ([10.0, 40.0], 100.0, True, 3),
        ([10.0, 40.0], 100.0, False, 4),
        # The longer ones do not fit anyway: a quarter of what is left is for this one.
        ([10.0, 400.0], 100.0, False, 2),
        # It just fits, or not.
        ([80.0], 93.0, False, 1),
        ([80.0], 91.0, False, 0),
        ([40.0], 91.0, True, 0),
        ([1.0], 0.0, False, 0),
    ],
)
def test_samples_fit_into_what_is_left(
    predicted_s: list[float], remaining_s: float, warm_up: bool, expected: int
) -> None:
    assert samples_to_take(predicted_s, remaining_s, warm_up=warm_up) == expected


@given(st.lists(st.floats(0.001, 1e4), min_size=1, max_size=20), st.floats(0, 1e4), st.booleans())
def test_what_is_planned_fits_if_predictions_hold(predicted_s: list[float], remaining_s: float, warm_up: bool) -> None:
    samples = samples_to_take(predicted_s, remaining_s, warm_up=warm_up)
    assert 0 <= samples <= MAX_SAMPLES
    if samples:
        assert (samples + warm_up) * predicted_s[0] * SLACK <= remaining_s * (1 + 1e-9)
