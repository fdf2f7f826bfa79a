"""`stream2llm profile` as whoever runs it sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stream2llm.commands.main import main
from stream2llm.costprofile import parse_profile
from stream2llm.costprofile.document import COMPACT_BYTES


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-seconds", "9"], "argument --max-seconds: must be at least 10, not 9"),
        (["--max-seconds", "soon"], "argument --max-seconds: must be a whole number of seconds, not 'soon'"),
    ],
)
def test_bad_numbers_are_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["profile", "--model", "m", "--output", "p.json", *arguments])
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "m", "--output", "/nowhere/p.json"], "--output /nowhere/p.json: there is no folder /nowhere"),
        (["--model", "m", "--output", "/tmp"], "--output /tmp is a folder; name a file"),
        (["--model", "/nowhere", "--output", "p.json"], "--model /nowhere: there is no such folder"),
        (
            ["--model", "m", "--output", "p.json", "--scheduler-cls", "x"],
            "--scheduler-cls cannot be given: the scheduler is chosen by --policy",
        ),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_loaded(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    report = tmp_path / "termination-log"
    assert main(["profile", *arguments, "--termination-message", str(report)]) == 1
    assert capsys.readouterr().err == f"stream2llm profile: {message}\n"
    assert report.read_text() == message


@pytest.mark.engine
def test_a_profile_of_the_real_engine(tiny_model: Path, tmp_path: Path) -> None:
    output, report = tmp_path / "profile.json", tmp_path / "termination-log"
    command = [sys.executable, "-m", "stream2llm.commands.main", "profile", "--model", tiny_model, "--output", output]
    options = ["--json", "--max-seconds", "600", "--termination-message", report]
    vllm_options = ["--dtype", "float32", "--enforce-eager", "--skip-tokenizer-init", "--block-size", "32"]
    limits = ["--max-model-len", "200", "--max-num-batched-tokens", "64"]
    # One process: this is about what is measured, not about how vLLM starts its workers.
    own = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *options, *vllm_options, *limits],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=700,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    profile = parse_profile(output.read_bytes())
    assert parse_profile(figures) == profile
    assert (profile.gpu, profile.model, profile.source) == ("cpu", tiny_model.name, "measured")
    assert (profile.block_size, profile.max_num_batched_tokens, profile.dtype) == (32, 64, "float32")
    # A prompt of 200 tokens would leave no room for an answer.
    assert profile.prefill.tokens == profile.swap_out.tokens == profile.swap_in.tokens == (32, 64, 128, 199)
    assert min(*profile.prefill.ms, *profile.swap_out.ms, *profile.swap_in.ms) > 0
    assert len(profile.prefill.mad_ms) == 4
    assert figures["skipped"] == []
    assert figures["samples"] == {"32": 7, "64": 7, "128": 7, "199": 7}
    assert figures["crossings"][0]["tokens"] == 1
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    compact = parse_profile(report.read_bytes())
    assert compact.key == profile.key
    assert len(report.read_bytes()) <= COMPACT_BYTES
    config = json.loads((tiny_model / "config.json").read_text())
    head_size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    expected_bytes = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head_size * 4
    assert profile.kv_bytes_per_token == expected_bytes
