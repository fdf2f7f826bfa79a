"""The profiles that come with the project, and the scripts that made them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from stream2llm.costprofile import parse_profile
from stream2llm.costprofile.document import COMPACT_BYTES

FOLDER = Path(__file__).parents[2] / "costprofiles"
PROFILES = sorted(FOLDER.glob("*.json"))


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"costprofiles_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_profile_can_be_read_and_sent(path: Path) -> None:
    profile = parse_profile(path.read_bytes())
    assert profile.to_json() == path.read_text(encoding="utf-8")
    assert len(profile.to_json(compact=True).encode()) <= COMPACT_BYTES
    assert path.name.startswith(f"{profile.gpu}-")
    assert path.stem.endswith(f"-tp{profile.tensor_parallel_size}")


def test_the_script_writes_the_estimated_ones(tmp_path: Path) -> None:
    estimate = script("estimate")
    assert estimate.main(["--check"]) == 0
    assert estimate.main(["--folder", str(tmp_path)]) == 0
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    estimated = {path.name: path.read_bytes() for path in PROFILES if b'"source": "estimated"' in path.read_bytes()}
    assert written == estimated
    assert len(written) == 10


def test_it_says_which_file_is_not_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    estimate = script("estimate")
    assert estimate.main(["--folder", str(tmp_path)]) == 0
    (tmp_path / "NVIDIA-L4-llama-3.1-8b-tp1.json").write_text("{}")
    (tmp_path / "NVIDIA-L4-llama-3.1-8b-tp2.json").unlink()
    assert estimate.main(["--folder", str(tmp_path), "--check"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "NVIDIA-L4-llama-3.1-8b-tp1.json is not what this script writes",
        "NVIDIA-L4-llama-3.1-8b-tp2.json is not what this script writes",
    ]


def test_estimates_can_be_made_for_another_engine(tmp_path: Path) -> None:
    arguments = ["--folder", str(tmp_path), "--vllm-version", "0.32.0", "--max-num-batched-tokens", "2048"]
    assert script("estimate").main(arguments) == 0
    key = parse_profile((tmp_path / "NVIDIA-H200-llama-3.1-8b-tp2.json").read_bytes()).key
    assert (key.vllm_minor, key.max_num_batched_tokens) == ("0.32", 2048)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--folder", "/nowhere"], "--folder /nowhere is no folder"),
        (["--max-num-batched-tokens", "0"], "must be at least 1, not 0"),
        (["--vllm-version", "dev"], "'dev' does not begin with two numbers"),
    ],
)
def test_bad_arguments_of_the_estimate_are_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        script("estimate").main(arguments)
    assert message in capsys.readouterr().err


# ---------------------------------------------------------------- measuring without vLLM
def test_the_dry_run_writes_a_profile_with_its_method(tmp_path: Path) -> None:
    output = tmp_path / "profile.json"
    command = [sys.executable, FOLDER / "measure_without_vllm.py", "--output", output, "--dry-run"]
    # Far more than it takes, so that a busy machine leaves nothing out.
    options = ["--max-seconds", "3600", "--max-num-batched-tokens", "128"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    profile = parse_profile(output.read_bytes())
    assert (profile.gpu, profile.source, profile.max_num_batched_tokens) == ("cpu", "measured", 128)
    assert profile.method.startswith("transformers ")
    assert profile.prefill.tokens == profile.swap_out.tokens == profile.swap_in.tokens == (16, 32, 64, 128, 256, 512)
    assert min(profile.prefill.ms) > 0
    assert min(profile.swap_out.ms) > 0
    assert profile.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2


def test_copies_come_back_as_they_were() -> None:
    torch = pytest.importorskip("torch")
    measuring = script("measure_without_vllm")
    timer = measuring.CopyTimer(measuring.TINY, "cpu", 16, 8)
    timer._chunk = 3
    for region in timer._regions:
        region.copy_(torch.randn_like(region))
    before = [region.clone() for region in timer._regions]
    blocks = torch.tensor([5, 0, 7, 2])
    timer._copy_out(blocks)
    for region in timer._regions:
        region[blocks] = 0
    timer._copy_in(blocks)
    assert all(torch.equal(region, kept) for region, kept in zip(timer._regions, before, strict=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--output"),
        (["--output", "/nowhere/profile.json"], "there is no such folder"),
        (["--output", "p.json", "--max-seconds", "5"], "--max-seconds must be at least 10, not 5"),
        (["--output", "p.json", "--block-size", "0"], "--block-size must be at least 1, not 0"),
        (
            ["--output", "p.json", "--max-num-batched-tokens", "8"],
            "--max-num-batched-tokens must be at least 16, not 8",
        ),
    ],
)
def test_bad_arguments_of_the_measurement_are_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        script("measure_without_vllm").parse_arguments(arguments)
    assert message in capsys.readouterr().err


def test_without_a_gpu_it_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert script("measure_without_vllm").main(["--output", str(tmp_path / "p.json")]) == 1
    assert "there is no CUDA device; --dry-run tries the script on the CPU" in capsys.readouterr().err


def test_the_measured_ones_name_how_they_were_made() -> None:
    measured = [parse_profile(path.read_bytes()) for path in PROFILES if b'"source": "measured"' in path.read_bytes()]
    assert [profile.gpu for profile in measured] == ["cpu"]
    for profile in measured:
        assert profile.measured_at
        assert list(profile.prefill.ms) == sorted(profile.prefill.ms)
        assert len(profile.prefill.mad_ms) == len(profile.prefill.tokens)


METADATA = {"model_name": "org/model", "tensor_parallel_size": 2}
RECOMPUTE = {"recomputation_latencies": {"1024": [30.0, 31.0, 35.0], "16": [8.0, 8.5, 9.0]}, "metadata": METADATA}
SWAP = {
    "swap_out_latency": {"16": [1.0, 2.0], "1024": [5.0, 4.0]},
    "swap_in_latency": {"16": [1.0, 1.5], "1024": [3.0, 4.0]},
    "metadata": METADATA,
}
ENGINE = ["--gpu=NVIDIA-H200", "--model=org/model", "--tensor-parallel-size=2", "--max-num-batched-tokens=8192"]
ENGINE += ["--kv-bytes-per-token=131072", "--vllm-version=0.33.0"]


def latency_files(folder: Path, recompute: str = "", swap: str = "") -> list[str]:
    (folder / "recompute.json").write_text(recompute or json.dumps(RECOMPUTE))
    (folder / "swap.json").write_text(swap or json.dumps(SWAP))
    return [str(folder / "recompute.json"), str(folder / "swap.json")]


def test_the_artifacts_files_become_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script("import_artifact").main([*latency_files(tmp_path), *ENGINE]) == 0
    profile = parse_profile(capsys.readouterr().out)
    assert profile.source == "imported"
    assert profile.gpu == "NVIDIA-H200"
    assert profile.prefill.points == [(16, 8.5), (1024, 31.0)]
    assert profile.swap_out.points == [(16, 2.0), (1024, 5.0)]
    assert profile.swap_in.points == [(16, 1.5), (1024, 4.0)]


@pytest.mark.parametrize(
    ("recompute", "swap", "more", "message"),
    [
        ("{", "", [], "recompute.json: Expecting property name"),
        ("[" * 100_000, "", [], "recompute.json: "),
        ("", "[]", [], "swap.json: is no JSON object"),
        ("", '{"metadata": {}}', [], "swap_out_latency: is missing"),
        ("", "", ["--model=org/other"], "recompute.metadata.model_name: is 'org/model', this engine has 'org/other'"),
        ("", "", ["--tensor-parallel-size=0"], "--tensor-parallel-size must be at least 1, not 0"),
        ("", "", ["--vllm-version=new"], "vLLM version 'new' does not begin with two numbers"),
    ],
)
def test_what_cannot_be_imported_is_told(
    recompute: str, swap: str, more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        script("import_artifact").main([*latency_files(tmp_path, recompute, swap), *ENGINE, *more])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
