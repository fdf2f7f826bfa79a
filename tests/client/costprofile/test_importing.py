from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from stream2llm.costprofile import Curve, InvalidProfile, ProfileKey, parse_profile
from stream2llm.costprofile.importing import import_artifact, slowest_of_workers

ENGINE = ProfileKey(
    gpu="NVIDIA-H200",
    model="meta-llama/Llama-3.1-8B-Instruct",
    revision="",
    dtype="bfloat16",
    kv_cache_dtype="auto",
    quantization=None,
    tensor_parallel_size=2,
    block_size=16,
    max_num_batched_tokens=8192,
    vllm_minor="0.33",
)
METADATA = {
    "model_name": "meta-llama/Llama-3.1-8B-Instruct",
    "gpu_memory_utilization": 0.85,
    "tensor_parallel_size": 2,
    "max_num_batched_tokens": 131072,
}


def recompute() -> dict[str, Any]:
    # Keys in the artifact's order are strings: 16 comes after 1024 there.
    return {
        "recomputation_latencies": {"1024": [30.0, 31.0, 35.0, 30.5, 29.0], "16": [9.0, 8.0, 8.5, 8.0, 8.0]},
        "metadata": METADATA,
    }


def swap() -> dict[str, Any]:
    return {
        "swap_out_latency": {"16": [1.0, 2.0, 3.0, 4.0, 5.0, 3.0, 2.0, 1.0, 0.5, 9.0]},
        "swap_in_latency": {"16": [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0]},
        "metadata": METADATA,
    }


def imported(recompute: dict[str, Any], swap: dict[str, Any], engine: ProfileKey = ENGINE) -> Any:
    return import_artifact(
        recompute,
        swap,
        engine=engine,
        vllm_version="0.33.0",
        kv_bytes_per_token=131072,
        measured_at=datetime(2026, 1, 2, tzinfo=UTC),
    )


def test_medians_and_deviations_come_in_order_of_length() -> None:
    profile = imported(recompute(), swap())
    assert profile.prefill == Curve((16, 1024), (8.0, 30.5), (0.0, 0.5))
    assert (profile.source, profile.key, profile.measured_at) == ("imported", ENGINE, "2026-01-02T00:00:00+00:00")
    assert parse_profile(profile.to_json()) == profile


def test_a_copy_is_over_when_its_slowest_worker_is_done() -> None:
    profile = imported(recompute(), swap())
    # Two workers, five repetitions: the slower ones are 3, 2, 3, 4, 9.
    assert profile.swap_out == Curve((16,), (3.0,), (1.0,))
    assert profile.swap_in == Curve((16,), (2.0,), (0.0,))
    assert slowest_of_workers([1.0, 2.0, 3.0], 2) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("file", "key", "value", "field", "message"),
    [
        ("recompute", "metadata", None, "recompute.metadata", "is missing"),
        (
            "swap",
            "metadata",
            {**METADATA, "tensor_parallel_size": 1},
            "swap.metadata.tensor_parallel_size",
            "is 1, this engine has 2",
        ),
        (
            "recompute",
            "metadata",
            {**METADATA, "model_name": "gpt2"},
            "recompute.metadata.model_name",
            "is 'gpt2', this engine has 'meta-llama/Llama-3.1-8B-Instruct'",
        ),
        ("recompute", "recomputation_latencies", None, "recomputation_latencies", "is missing"),
        ("recompute", "recomputation_latencies", {}, "recomputation_latencies", "must have 1 to 40 lengths, not 0"),
        (
            "recompute",
            "recomputation_latencies",
            {"x": [1.0]},
            "recomputation_latencies",
            "'x' is not a number of tokens",
        ),
        (
            "recompute",
            "recomputation_latencies",
            {"-1": [1.0]},
            "recomputation_latencies",
            "'-1' is not a number of tokens",
        ),
        (
            "recompute",
            "recomputation_latencies",
            {"0": [1.0]},
            "prefill.tokens[0]",
            "must be from 1 to 16777216, not 0",
        ),
        (
            "recompute",
            "recomputation_latencies",
            {"16": []},
            "recomputation_latencies.16",
            "must be a list of 1 to 1024 samples",
        ),
        (
            "recompute",
            "recomputation_latencies",
            {"16": [-1.0]},
            "recomputation_latencies.16",
            "-1.0 is not a number of milliseconds",
        ),
        (
            "swap",
            "swap_in_latency",
            {"16": [float("nan")]},
            "swap_in_latency.16",
            "nan is not a number of milliseconds",
        ),
        ("swap", "swap_out_latency", {"16": ["1"]}, "swap_out_latency.16", "1 is not a number of milliseconds"),
    ],
)
def test_bad_files_are_refused(file: str, key: str, value: Any, field: str, message: str) -> None:
    files = {"recompute": recompute(), "swap": swap()}
    files[file][key] = value
    with pytest.raises(InvalidProfile) as raised:
        imported(**files)
    assert (raised.value.field, raised.value.message) == (field, message)


def test_one_worker_needs_no_slowest() -> None:
    files = {"recompute": recompute(), "swap": swap()}
    for document in files.values():
        document["metadata"] = {**METADATA, "tensor_parallel_size": 1}
    profile = imported(**files, engine=replace(ENGINE, tensor_parallel_size=1))
    assert profile.swap_out == Curve((16,), (2.5,), (1.5,))
