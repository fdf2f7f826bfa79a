"""The key of an engine is read from vLLM's own configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import vllm
from engines import make_config

from stream2llm.costprofile.key import ProfileKey
from stream2llm_pod.engine.identifying import profile_key

pytestmark = pytest.mark.simulated


def test_a_key_holds_what_the_engine_was_started_with(tiny_model: Path) -> None:
    key = profile_key(make_config(tiny_model, max_num_batched_tokens=192))
    assert key == ProfileKey(
        gpu="cpu",
        model=tiny_model.name,
        revision="",
        dtype="float32",
        kv_cache_dtype="auto",
        quantization=None,
        tensor_parallel_size=1,
        block_size=32,
        max_num_batched_tokens=192,
        vllm_minor=".".join(vllm.__version__.split(".")[:2]),
    )


def test_another_configuration_has_another_key(tiny_model: Path) -> None:
    usual = profile_key(make_config(tiny_model))
    other = profile_key(make_config(tiny_model, block_size=64))
    assert other == replace(usual, block_size=64)
    assert usual.differences(other) == ["block_size: profile has 32, this engine has 64"]
