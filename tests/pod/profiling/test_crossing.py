from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.costprofile import CostProfile, Curve
from stream2llm_pod.profiling.crossing import cost_model, crossings
from stream2llm_pod.scheduling.costs import Preemption

RECOMPUTE, SWAP = Preemption.RECOMPUTE, Preemption.SWAP


def profile(prefill: list[tuple[int, float]], copy: list[tuple[int, float]]) -> CostProfile:
    def curve(points: list[tuple[int, float]]) -> Curve:
        return Curve(tuple(tokens for tokens, _ in points), tuple(ms for _, ms in points))

    return CostProfile(
        gpu="cpu",
        model="model",
        revision="",
        dtype="float32",
        kv_cache_dtype="auto",
        quantization=None,
        tensor_parallel_size=1,
        block_size=16,
        max_num_batched_tokens=64,
        kv_bytes_per_token=1,
        vllm_version="0.32.0",
        source="estimated",
        measured_at="",
        prefill=curve(prefill),
        swap_out=curve(copy),
        swap_in=curve(copy),
    )


def test_swap_is_cheaper_from_where_the_lines_cross() -> None:
    # 1 ms a token against 25 ms and a quarter each way: equal at 100 tokens, where recompute is still taken.
    crossed = profile([(16, 16.0), (1024, 1024.0)], [(16, 29.0), (1024, 281.0)])
    assert crossings(crossed) == [(1, RECOMPUTE), (101, SWAP)]


def test_curves_may_cross_twice() -> None:
    twice = profile([(100, 100.0), (200, 300.0), (400, 301.0)], [(100, 75.0), (200, 125.0), (400, 225.0)])
    found = crossings(twice)
    assert [way for _, way in found] == [RECOMPUTE, SWAP, RECOMPUTE]
    assert 100 < found[1][0] < 200 < found[2][0] < 400


def test_curves_that_do_not_cross() -> None:
    assert crossings(profile([(16, 1.0), (64, 2.0)], [(16, 5.0), (64, 9.0)])) == [(1, RECOMPUTE)]
    assert crossings(profile([(16, 10.0), (64, 20.0)], [(16, 1.0), (64, 2.0)])) == [(1, SWAP)]


POINTS = st.dictionaries(st.integers(1, 5000), st.floats(0.1, 1e4), min_size=1, max_size=6).map(
    lambda points: sorted(points.items())
)


@given(POINTS, POINTS, st.integers(1, 5000))
def test_between_crossings_the_cheaper_way_is_the_one_named(
    prefill: list[tuple[int, float]], copy: list[tuple[int, float]], tokens: int
) -> None:
    made = profile(prefill, copy)
    last = max(*made.prefill.tokens, *made.swap_out.tokens)
    tokens = min(tokens, last)
    named = [way for start, way in crossings(made) if start <= tokens][-1]
    costs = cost_model(made)
    difference = costs.recompute_ms(tokens) - costs.swap_ms(tokens)
    if abs(difference) > 1e-6 * costs.recompute_ms(tokens):
        assert named is (SWAP if difference > 0 else RECOMPUTE)


def test_the_drawing_shows_both_curves(tmp_path: object) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    assert matplotlib
    from pathlib import Path

    from stream2llm_pod.profiling.plotting import draw

    path = Path(str(tmp_path)) / "curves.png"
    crossed = profile([(16, 16.0), (1024, 1024.0)], [(16, 29.0), (1024, 281.0)])
    draw(replace(crossed, prefill=replace(crossed.prefill, mad_ms=(0.5, 3.0))), path)
    assert path.read_bytes().startswith(b"\x89PNG")
