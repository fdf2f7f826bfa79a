"""Defaults and checks of an engine on CPU."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stream2llm_pod.serving.cpu_engine import (
    MIB,
    chosen_kv_cache,
    default_kv_cache_bytes,
    free_memory_bytes,
    missing_compiler,
)


def arguments(**changes: Any) -> Namespace:
    """vLLM's arguments as they are if none is given."""
    values = {
        "kv_cache_memory_bytes": None,
        "num_gpu_blocks_override": None,
        "enforce_eager": False,
        "optimization_level": 2,
        "compilation_config": SimpleNamespace(mode=None),
    }
    return Namespace(**(values | changes))


@pytest.mark.parametrize(
    ("free_bytes", "expected"),
    [([8 * 2**30], 2 * 2**30), ([8 * 2**30, 2**30], 2**28), ([7 * MIB], MIB), ([3 * MIB], 0), ([0], 0)],
)
def test_the_kv_cache_gets_a_quarter_of_the_least(free_bytes: list[int], expected: int) -> None:
    assert default_kv_cache_bytes(free_bytes) == expected


def test_a_container_has_what_its_limit_leaves(tmp_path: Path) -> None:
    assert len(free_memory_bytes(tmp_path)) == 1
    (tmp_path / "memory.current").write_text("300\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert len(free_memory_bytes(tmp_path)) == 1
    (tmp_path / "memory.max").write_text("1000\n")
    assert free_memory_bytes(tmp_path)[1] == 700
    (tmp_path / "memory.max").write_text("200\n")
    assert free_memory_bytes(tmp_path)[1] == 0


@pytest.mark.parametrize(
    ("changes", "environment", "expected"),
    [
        ({}, {}, False),
        ({}, {"VLLM_CPU_KVCACHE_SPACE": ""}, False),
        ({}, {"VLLM_CPU_KVCACHE_SPACE": "2"}, True),
        ({"kv_cache_memory_bytes": 5}, {}, True),
        ({"num_gpu_blocks_override": 5}, {}, True),
    ],
)
def test_what_somebody_has_chosen_is_kept(changes: dict[str, Any], environment: dict[str, str], expected: bool) -> None:
    assert chosen_kv_cache(arguments(**changes), environment) is expected


def test_a_missing_compiler_is_found_where_it_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing_compiler(arguments(), {}) == "g++"
    assert missing_compiler(arguments(), {"CXX": "clang++"}) == "clang++"
    for changes in (
        {"enforce_eager": True},
        {"optimization_level": 0},
        {"compilation_config": SimpleNamespace(mode=0)},
    ):
        assert missing_compiler(arguments(**changes), {}) is None
    compiler = tmp_path / "clang++"
    compiler.write_text("")
    compiler.chmod(0o755)
    assert missing_compiler(arguments(), {"CXX": "clang++"}) is None
