from __future__ import annotations

from dataclasses import fields, replace

import pytest

from stream2llm.costprofile.key import ProfileKey, model_identity, vllm_minor

KEY = ProfileKey(
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


def test_equal_keys_have_no_differences() -> None:
    assert KEY.differences(replace(KEY)) == []


@pytest.mark.parametrize("field", [field.name for field in fields(ProfileKey)])
def test_each_field_counts(field: str) -> None:
    value = getattr(KEY, field)
    other = replace(KEY, **{field: value + 1 if isinstance(value, int) else "other"})
    (line,) = KEY.differences(other)
    assert line.startswith(f"{field}: profile has ")
    assert line.endswith(f"this engine has {getattr(other, field)}")


def test_a_difference_names_both_sides() -> None:
    engine = replace(KEY, gpu="cpu", quantization="fp8", revision="main")
    assert KEY.differences(engine) == [
        "gpu: profile has NVIDIA-H200, this engine has cpu",
        "revision: profile has none, this engine has main",
        "quantization: profile has none, this engine has fp8",
    ]


@pytest.mark.parametrize(
    ("version", "minor"), [("0.32.0", "0.32"), ("0.33.1rc1+cu130", "0.33"), ("1.2", "1.2"), ("0.100.1", "0.100")]
)
def test_a_minor_is_the_first_two_numbers(version: str, minor: str) -> None:
    assert vllm_minor(version) == minor


@pytest.mark.parametrize("version", ["", "dev", "1", "v0.32.0"])
def test_a_version_without_two_numbers_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match="does not begin with two numbers"):
        vllm_minor(version)


@pytest.mark.parametrize(
    ("given", "revision", "expected"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", None, ("meta-llama/Llama-3.1-8B-Instruct", "")),
        ("meta-llama/Llama-3.1-8B-Instruct", "main", ("meta-llama/Llama-3.1-8B-Instruct", "main")),
        ("gpt2", None, ("gpt2", "")),
        ("/models/llama/", None, ("llama", "")),
        ("./llama", None, ("llama", "")),
        ("~/models/llama", "abc", ("llama", "abc")),
        ("some/deeper/folder", None, ("folder", "")),
        (
            "/home/user/.cache/huggingface/hub/models--meta-llama--Llama-3.1-8B/snapshots/0e9e39f",
            None,
            ("meta-llama/Llama-3.1-8B", "0e9e39f"),
        ),
        ("/hub/models--gpt2/snapshots/abc", None, ("gpt2", "abc")),
    ],
)
def test_a_model_has_one_identity(given: str, revision: str | None, expected: tuple[str, str]) -> None:
    assert model_identity(given, revision) == expected
