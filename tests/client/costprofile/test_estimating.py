from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.costprofile import ProfileKey, parse_profile
from stream2llm.costprofile.estimating import Device, Efficiencies, ModelShape, estimate, powers_of_two, prefill_ms

MODEL = ModelShape(
    name="model",
    layers=32,
    hidden=4096,
    intermediate=14336,
    heads=32,
    kv_heads=8,
    head_size=128,
    vocabulary=128256,
    max_tokens=131072,
)
DEVICE = Device("NVIDIA-H200", peak_tflops=1000, memory_gb_s=5000, host_gb_s=50, peer_gb_s=500)
IDEAL = Efficiencies(arithmetic=1, memory=1, link=1, step_ms=0, copy_ms=0)


def key(ranks: int = 1, budget_tokens: int = 8192) -> ProfileKey:
    return ProfileKey("NVIDIA-H200", "model", "", "bfloat16", "auto", None, ranks, 16, budget_tokens, "0.33")


def test_the_shape_of_llama_3_1_8b() -> None:
    # Published: 8.03e9 parameters with embedding and output, two matrices of 128256 x 4096; 128 KiB of KV a token.
    assert MODEL.layer_weights + 2 * 128256 * 4096 == pytest.approx(8.03e9, rel=1e-3)
    assert MODEL.kv_bytes_per_token == 131072


def test_a_short_prompt_is_bound_by_reading_the_weights() -> None:
    weights = MODEL.layer_weights + 128256 * 4096
    expected_ms = (2 * weights + 16 * 131072) / 5e12 * 1e3
    assert prefill_ms(DEVICE, MODEL, 16, 1, 8192, IDEAL) == pytest.approx(expected_ms)


def test_a_long_prompt_is_bound_by_arithmetic() -> None:
    linear = 2 * (MODEL.layer_weights * 8192 + 128256 * 4096)
    attention = 4 * 32 * 32 * 128 * (8192 * 8193 / 2)
    assert prefill_ms(DEVICE, MODEL, 8192, 1, 8192, IDEAL) == pytest.approx((linear + attention) / 1e15 * 1e3)


def test_two_ranks_halve_the_work_and_pay_for_the_all_reduces() -> None:
    one, two = (prefill_ms(DEVICE, MODEL, 4096, ranks, 8192, IDEAL) for ranks in (1, 2))
    all_reduce_ms = 2 * 32 * 4096 * 4096 * 2 / 500e9 * 1e3
    assert two == pytest.approx(one / 2 + all_reduce_ms)


def test_each_step_of_the_budget_pays_its_overhead() -> None:
    slow = Efficiencies(arithmetic=1, memory=1, link=1, step_ms=100, copy_ms=0)
    whole = prefill_ms(DEVICE, MODEL, 8192, 1, 8192, slow)
    parts = prefill_ms(DEVICE, MODEL, 8192, 1, 2048, slow)
    # The output projection runs once more in each further step; the work is otherwise the same.
    assert parts - whole == pytest.approx(3 * (100 + 2 * 128256 * 4096 / 1e15 * 1e3))


def test_a_swap_moves_the_ranks_share() -> None:
    profile = estimate(DEVICE, MODEL, key(ranks=2), vllm_version="0.33.0", efficiencies=IDEAL)
    # 131072 tokens of 128 KiB over two links of 50 GB/s each.
    assert profile.swap_out.ms[-1] == profile.swap_in.ms[-1] == pytest.approx(131072 * 65536 / 50e9 * 1e3, abs=1e-3)


def test_an_estimate_says_so_and_can_be_read_back() -> None:
    profile = estimate(DEVICE, MODEL, key(), vllm_version="0.33.0")
    assert profile.source == "estimated"
    assert profile.key == key()
    assert profile.prefill.tokens == tuple(16 << i for i in range(14))
    assert parse_profile(profile.to_json()) == profile


@given(st.integers(1, 8), st.integers(16, 65536), st.integers(1, 131072), st.integers(1, 131072))
def test_a_longer_prompt_never_takes_less(ranks: int, budget_tokens: int, a: int, b: int) -> None:
    short, long = sorted((a, b))
    assumed = Efficiencies()
    assert prefill_ms(DEVICE, MODEL, short, ranks, budget_tokens, assumed) <= prefill_ms(
        DEVICE, MODEL, long, ranks, budget_tokens, assumed
    ) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("shortest", "longest", "expected"),
    [(16, 64, (16, 32, 64)), (16, 100, (16, 32, 64, 100)), (32, 32, (32,)), (32, 20, (20,))],
)
def test_lengths_double_up_to_the_longest(shortest: int, longest: int, expected: tuple[int, ...]) -> None:
    assert powers_of_two(shortest, longest) == expected
