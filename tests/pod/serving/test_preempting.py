"""The arguments that say what a preemption does: what is refused, and in which words."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from stream2llm_pod.serving.command import COMMAND
from stream2llm_pod.serving.preempting import preemption_settings

PROFILE: dict[str, Any] = {
    "schema": 1,
    "gpu": "cpu",
    "model": "tiny",
    "revision": "",
    "dtype": "float32",
    "kv_cache_dtype": "auto",
    "quantization": None,
    "tensor_parallel_size": 1,
    "block_size": 32,
    "max_num_batched_tokens": 256,
    "kv_bytes_per_token": 1024,
    "vllm_version": "0.32.0",
    "source": "estimated",
    "measured_at": "",
    "prefill": {"tokens": [1, 100], "ms": [1.0, 50.0]},
    "swap_out": {"tokens": [1, 100], "ms": [1.0, 2.0]},
    "swap_in": {"tokens": [1, 100], "ms": [1.0, 2.0]},
}


def written(path: Path, profile: dict[str, Any]) -> str:
    path.write_text(json.dumps(profile))
    return str(path)


def test_a_profile_is_read_and_passed_on(tmp_path: Path) -> None:
    settings = preemption_settings("cost", written(tmp_path / "p.json", PROFILE), "64MiB")
    assert (settings["preemption"], settings["swap_bytes"]) == ("cost", 64 << 20)
    assert settings["cost_profile"]["prefill"]["ms"] == [1.0, 50.0]


def test_recomputing_needs_no_host_memory() -> None:
    assert preemption_settings("recompute", None, "4GiB") == {
        "preemption": "recompute",
        "swap_bytes": 0,
        "cost_profile": None,
    }


def test_host_memory_of_nothing_is_allowed() -> None:
    assert preemption_settings("swap", None, "0")["swap_bytes"] == 0


@pytest.mark.parametrize(
    ("kind", "space", "message"),
    [
        ("drop", "0", "--preemption 'drop' is not known; choose one of cost, recompute, swap"),
        ("cost", "0", "--preemption cost needs --cost-profile FILE"),
        ("swap", "much", "--swap-space 'much' is not a size"),
        ("swap", "900PiB", "--swap-space 900PiB is 1013309916158361600 bytes, and this machine has"),
    ],
)
def test_bad_arguments_are_refused(kind: str, space: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        preemption_settings(kind, None, space)


def test_a_profile_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--cost-profile .*nothing\.json cannot be read: No such file"):
        preemption_settings("cost", str(tmp_path / "nothing.json"), "0")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"prefill": {"tokens": [1, 100], "ms": [1.0, -1.0]}}, r"prefill\.ms"),
        ({"prefill": {"tokens": [100, 1], "ms": [1.0, 2.0]}}, r"prefill\.tokens"),
        ({"schema": 2}, "schema"),
        ({"gpu": 7}, "gpu"),
    ],
)
def test_a_bad_profile_is_refused_by_field(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    path = written(tmp_path / "bad.json", {**PROFILE, **change})
    with pytest.raises(ValueError, match=rf"--cost-profile .*bad\.json: cost profile: {field}"):
        preemption_settings("cost", path, "0")


def test_a_missing_key_is_refused(tmp_path: Path) -> None:
    short = {name: value for name, value in PROFILE.items() if name != "swap_in"}
    with pytest.raises(ValueError, match="swap_in"):
        preemption_settings("cost", written(tmp_path / "short.json", short), "0")


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    path.write_bytes(b" " * 100_000_000)
    with pytest.raises(ValueError, match="bytes"):
        preemption_settings("cost", str(path), "0")


def test_an_unknown_policy_is_refused_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    COMMAND.add_arguments(parser)
    with pytest.raises(SystemExit) as refused:
        parser.parse_args(["--model", "m", "--policy", "nope"])
    assert refused.value.code == 2
    assert "argument --policy: 'nope' is not known; choose one of default, fcfs" in capsys.readouterr().err
