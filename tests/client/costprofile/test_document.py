from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream2llm.costprofile import CostProfile, Curve, InvalidProfile, parse_profile
from stream2llm.costprofile.document import COMPACT_BYTES, MAX_MS, MAX_POINTS, MAX_PROFILE_BYTES, MAX_TOKENS


def document() -> dict[str, Any]:
    return {
        "schema": 1,
        "gpu": "NVIDIA-H200",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "revision": "",
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "quantization": None,
        "tensor_parallel_size": 2,
        "block_size": 16,
        "max_num_batched_tokens": 8192,
        "kv_bytes_per_token": 131072,
        "vllm_version": "0.33.0",
        "source": "measured",
        "measured_at": "2026-11-30T00:00:00Z",
        "prefill": {"tokens": [16, 32, 64], "ms": [5.0, 5.5, 6.25], "mad_ms": [0.1, 0.1, 0.2]},
        "swap_out": {"tokens": [16, 64], "ms": [1.0, 2.0]},
        "swap_in": {"tokens": [16, 64], "ms": [1.0, 2.5]},
    }


def test_every_field_is_read() -> None:
    profile = parse_profile(document())
    assert profile == CostProfile(
        gpu="NVIDIA-H200",
        model="meta-llama/Llama-3.1-8B-Instruct",
        revision="",
        dtype="bfloat16",
        kv_cache_dtype="auto",
        quantization=None,
        tensor_parallel_size=2,
        block_size=16,
        max_num_batched_tokens=8192,
        kv_bytes_per_token=131072,
        vllm_version="0.33.0",
        source="measured",
        measured_at="2026-11-30T00:00:00Z",
        prefill=Curve((16, 32, 64), (5.0, 5.5, 6.25), (0.1, 0.1, 0.2)),
        swap_out=Curve((16, 64), (1.0, 2.0)),
        swap_in=Curve((16, 64), (1.0, 2.5)),
    )
    assert profile.swap_in.points == [(16, 1.0), (64, 2.5)]


def test_text_bytes_and_mapping_give_the_same() -> None:
    text = json.dumps(document())
    assert parse_profile(text) == parse_profile(text.encode()) == parse_profile(document())


def test_keys_that_are_not_of_the_schema_are_left_out() -> None:
    assert parse_profile({**document(), "remark": "tried on a Monday"}) == parse_profile(document())


def _without(field: str) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        outer, _, inner = field.partition(".")
        if inner:
            del document[outer][inner]
        else:
            del document[outer]

    return change


def _with(field: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        outer, _, inner = field.partition(".")
        if inner:
            document[outer][inner] = value
        else:
            document[outer] = value

    return change


REQUIRED = list(document())


@pytest.mark.parametrize("field", [*REQUIRED, "prefill.tokens", "prefill.ms", "swap_out.ms", "swap_in.tokens"])
def test_a_missing_key_is_named(field: str) -> None:
    broken = document()
    _without(field)(broken)
    with pytest.raises(InvalidProfile) as raised:
        parse_profile(broken)
    assert (raised.value.field, raised.value.message) == (field, "is missing")
    assert str(raised.value) == f"cost profile: {field}: is missing"


@pytest.mark.parametrize(
    ("field", "value", "at", "message"),
    [
        ("schema", 2, "schema", "2 is not known; this version reads 1"),
        ("schema", "1", "schema", "'1' is not known; this version reads 1"),
        ("schema", True, "schema", "True is not known; this version reads 1"),
        ("gpu", "", "gpu", "must not be empty"),
        ("gpu", 7, "gpu", "must be text, not the number 7"),
        ("gpu", "a\nb", "gpu", "'a\\nb' holds characters that cannot be printed"),
        ("gpu", "x" * 65, "gpu", "has 65 bytes; at most 64 are allowed"),
        ("model", "é" * 129, "model", "has 258 bytes; at most 256 are allowed"),
        ("revision", None, "revision", "must be text, not null"),
        ("quantization", "", "quantization", "must not be empty"),
        ("tensor_parallel_size", 0, "tensor_parallel_size", "must be from 1 to 2147483648, not 0"),
        ("tensor_parallel_size", True, "tensor_parallel_size", "must be a whole number, not true or false"),
        ("block_size", 16.0, "block_size", "must be a whole number, not the number 16.0"),
        ("kv_bytes_per_token", -1, "kv_bytes_per_token", "must be from 1 to 2147483648, not -1"),
        ("vllm_version", "dev", "vllm_version", "vLLM version 'dev' does not begin with two numbers"),
        ("source", "guessed", "source", "'guessed' is not one of measured, estimated, imported"),
        ("measured_at", "", "measured_at", "must not be empty"),
        ("measured_at", "yesterday", "measured_at", "'yesterday' is not an ISO 8601 time"),
        (
            "measured_at",
            "2026-11-30T00:00:00",
            "measured_at",
            "'2026-11-30T00:00:00' has no time zone; append Z for UTC",
        ),
        ("prefill", [1], "prefill", "must be an object with tokens and ms, not a list"),
        ("prefill.tokens", 16, "prefill.tokens", "must be a list, not the number 16"),
        ("prefill.tokens", [], "prefill.tokens", "must have 1 to 40 points, not 0"),
        ("prefill.tokens", list(range(1, 42)), "prefill.tokens", "must have 1 to 40 points, not 41"),
        ("prefill.tokens", [16, 16, 64], "prefill.tokens[1]", "must be above the one before, 16, not 16"),
        ("prefill.tokens", [16, 64, 32], "prefill.tokens[2]", "must be above the one before, 64, not 32"),
        ("prefill.tokens", [0, 16, 64], "prefill.tokens[0]", f"must be from 1 to {MAX_TOKENS}, not 0"),
        ("prefill.tokens", [1, 2, 10**30], "prefill.tokens[2]", f"must be from 1 to {MAX_TOKENS}, not {10**30}"),
        (
            "prefill.tokens",
            [1, 2, 10**60],
            "prefill.tokens[2]",
            f"must be from 1 to {MAX_TOKENS}, not a number of 200 bits",
        ),
        ("prefill.ms", [5.0, 5.5], "prefill.ms", "must have one value for each of the 3 lengths, not 2"),
        ("prefill.ms", [5.0, -5.5, 6.0], "prefill.ms[1]", "must be from 0 to 10000000 ms, not -5.5"),
        ("prefill.ms", [5.0, math.nan, 6.0], "prefill.ms[1]", "must be from 0 to 10000000 ms, not nan"),
        ("prefill.ms", [5.0, 6.0, math.inf], "prefill.ms[2]", "must be from 0 to 10000000 ms, not inf"),
        ("prefill.ms", [5.0, 6.0, 1.1e7], "prefill.ms[2]", "must be from 0 to 10000000 ms, not 11000000.0"),
        ("prefill.ms", [5.0, "6", 7.0], "prefill.ms[1]", "must be a number of milliseconds, not text"),
        ("prefill.ms", [5.0, None, 7.0], "prefill.ms[1]", "must be a number of milliseconds, not null"),
        ("prefill.mad_ms", [0.1], "prefill.mad_ms", "must have one value for each of the 3 lengths, not 1"),
        ("swap_in.ms", [1.0, -0.1], "swap_in.ms[1]", "must be from 0 to 10000000 ms, not -0.1"),
    ],
)
def test_a_bad_value_is_refused_with_field_value_and_limit(field: str, value: Any, at: str, message: str) -> None:
    broken = document()
    _with(field, value)(broken)
    with pytest.raises(InvalidProfile) as raised:
        parse_profile(broken)
    assert (raised.value.field, raised.value.message) == (at, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[1]", "must be a JSON object, not a list"),
        ("[" * 60_000, "is not JSON"),
        ('{"schema": ' + "9" * 5000 + "}", "is not JSON"),
        (b"\xff{}", "is not JSON"),
        ("x" * (MAX_PROFILE_BYTES + 1), "65537 bytes; at most 65536 are read"),
        ('{"schema": 1, "schema": 1}', "appears twice"),
    ],
)
def test_what_is_no_profile_at_all_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(InvalidProfile, match=message):
        parse_profile(text)


def test_nan_and_infinity_in_json_are_refused() -> None:
    for word in ("NaN", "Infinity", "-Infinity", "1e999"):
        text = json.dumps(document()).replace("6.25", word)
        with pytest.raises(InvalidProfile, match=r"prefill\.ms\[2\]: must be from 0 to"):
            parse_profile(text)


def test_an_estimate_need_not_say_when() -> None:
    profile = parse_profile({**document(), "source": "estimated", "measured_at": ""})
    assert profile.measured_at == ""


# ---------------------------------------------------------------- round trips
PRINTABLE = st.sampled_from('abcXYZ019-_./ "\\é€漢')


def text(limit_bytes: int, smallest: int = 1) -> st.SearchStrategy[str]:
    return st.text(PRINTABLE, min_size=smallest, max_size=limit_bytes).filter(
        lambda value: len(value.encode()) <= limit_bytes
    )


MS = st.floats(0, MAX_MS) | st.integers(0, int(MAX_MS))


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    tokens = sorted(draw(st.sets(st.integers(1, MAX_TOKENS), min_size=1, max_size=MAX_POINTS)))
    values = st.lists(MS, min_size=len(tokens), max_size=len(tokens)).map(tuple)
    return Curve(tuple(tokens), draw(values), draw(st.just(()) | values))


PROFILES = st.builds(
    CostProfile,
    gpu=text(64),
    model=text(256),
    revision=text(128, 0),
    dtype=text(64),
    kv_cache_dtype=text(64),
    quantization=st.none() | text(64),
    tensor_parallel_size=st.integers(1, 64),
    block_size=st.integers(1, 1 << 31),
    max_num_batched_tokens=st.integers(1, 1 << 31),
    kv_bytes_per_token=st.integers(1, 1 << 31),
    vllm_version=st.sampled_from(["0.32.0", "0.33.1rc1+cu130"]),
    source=st.sampled_from(["measured", "estimated", "imported"]),
    measured_at=st.just("2026-11-30T00:00:00.123456+00:00"),
    prefill=curves(),
    swap_out=curves(),
    swap_in=curves(),
    method=text(1024, 0),
)


@given(PROFILES)
def test_a_profile_comes_back_from_json_as_it_was(profile: CostProfile) -> None:
    assert parse_profile(profile.to_json()) == profile
    assert profile.checked() == profile


@given(PROFILES)
def test_the_compact_form_is_a_profile_of_at_most_4096_bytes(profile: CostProfile) -> None:
    compact = profile.to_json(compact=True)
    assert "\n" not in compact
    assert len(compact.encode()) <= COMPACT_BYTES
    read = parse_profile(compact)
    assert read.key == profile.key
    for name in ("prefill", "swap_out", "swap_in"):
        curve, original = getattr(read, name), dict(getattr(profile, name).points)
        assert curve.tokens[-1] == max(original)
        for tokens, ms in curve.points:
            assert ms == pytest.approx(original[tokens], rel=5.1e-4)
    assert read.to_json(compact=True) == compact


def largest() -> CostProfile:
    """As many bytes as there can be."""
    tokens = tuple(range(MAX_TOKENS - MAX_POINTS + 1, MAX_TOKENS + 1))
    curve = Curve(tokens, (1.23456e-100,) * MAX_POINTS, (1.23456e-100,) * MAX_POINTS)
    return CostProfile(
        gpu='"' * 64,
        model='"' * 256,
        revision='"' * 128,
        dtype='"' * 64,
        kv_cache_dtype='"' * 64,
        quantization='"' * 64,
        tensor_parallel_size=1 << 31,
        block_size=1 << 31,
        max_num_batched_tokens=1 << 31,
        kv_bytes_per_token=1 << 31,
        vllm_version="0.32." + "9" * 59,
        source="estimated",
        measured_at="2026-11-30T00:00:00.123456+00:00",
        prefill=curve,
        swap_out=curve,
        swap_in=curve,
        method='"' * 1024,
    )


def test_the_largest_profile_loses_deviations_and_points_to_fit() -> None:
    compact = parse_profile(largest().checked().to_json(compact=True))
    assert len(compact.to_json(compact=True).encode()) <= COMPACT_BYTES
    assert compact.prefill.mad_ms == ()
    assert compact.prefill.tokens[0] == largest().prefill.tokens[0]
    assert compact.prefill.tokens[-1] == largest().prefill.tokens[-1]
    assert len(compact.prefill.tokens) == 21


def test_what_fits_loses_no_point() -> None:
    profile = parse_profile(document())
    assert parse_profile(profile.to_json(compact=True)) == profile


JSON_VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers() | st.floats() | st.none(), max_size=4)
)


@given(st.dictionaries(st.sampled_from(REQUIRED), JSON_VALUES, min_size=1, max_size=3))
@settings(max_examples=300)
def test_whatever_a_field_holds_it_is_a_profile_or_an_invalid_one(changes: dict[str, Any]) -> None:
    text = json.dumps({**document(), **changes})
    try:
        profile = parse_profile(text)
    except InvalidProfile as error:
        named, length = error.field, len(str(error))
    else:
        named, length = "profile", len(profile.to_json(compact=True))
    assert named
    assert length < COMPACT_BYTES
