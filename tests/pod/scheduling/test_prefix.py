from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream2llm_pod.scheduling.prefix import common_prefix_tokens, to_tokens

TOKENS = st.lists(st.integers(0, 3), max_size=60)
CHUNK_TOKENS = 1 << 15


def naive(a: list[int], b: list[int]) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length


@given(TOKENS, TOKENS, TOKENS)
def test_it_equals_the_naive_loop(shared: list[int], a: list[int], b: list[int]) -> None:
    left, right = shared + a, shared + b
    assert common_prefix_tokens(to_tokens(left), to_tokens(right)) == naive(left, right)


@given(st.integers(0, 3 * CHUNK_TOKENS), st.integers(0, 3 * CHUNK_TOKENS))
@settings(max_examples=100, deadline=None)
def test_it_finds_one_difference_anywhere_in_a_long_prompt(length: int, position: int) -> None:
    a = np.arange(length, dtype=np.int32)
    b = a.copy()
    if position < length:
        b[position] ^= 1
    assert common_prefix_tokens(a, b) == min(position, length)


@pytest.mark.parametrize("length", [0, 1, CHUNK_TOKENS - 1, CHUNK_TOKENS, CHUNK_TOKENS + 1])
def test_equal_prompts_share_everything(length: int) -> None:
    a = np.arange(length, dtype=np.int32)
    assert common_prefix_tokens(a, a.copy()) == length


def test_slices_and_views_are_compared_by_value() -> None:
    a = np.arange(100, dtype=np.int32)
    assert common_prefix_tokens(a[::2], np.arange(0, 100, 2, dtype=np.int32)) == 50


def test_a_token_that_is_no_int32_is_refused() -> None:
    with pytest.raises(OverflowError):
        to_tokens([2**31])
