"""`stream2llm bench`: names, output, exit status."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from stream2llm.commands.main import main
from stream2llm_bench import registry
from stream2llm_bench.failing import Unavailable
from stream2llm_bench.reporting import Report, Table


class FakeBench:
    name = "fake"
    help = "a bench of the tests"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--size", type=int, default=1)

    def run(self, args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
        if args.size < 0:
            raise Unavailable("--size must be at least 0")
        progress("measuring")
        table = Table("Sizes", ("what", "size"), [("size", str(args.size))])
        return Report("fake", {"size": args.size}, [table], plot=lambda path: path.write_text("picture") and None)


@pytest.fixture(autouse=True)
def fake_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("fake_bench")
    module.BENCH = FakeBench()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_bench", module)
    monkeypatch.setitem(registry.BENCHES, "fake", ("fake_bench:BENCH", "nothing"))


def test_json_is_all_that_stdout_gets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "fake", "--json", "--size", "3", "--output", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"size": 3}
    assert err.startswith("measuring\n")
    assert {path.name for path in tmp_path.iterdir()} == {"fake.json", "fake.txt", "fake.png"}


def test_options_before_the_name_count_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--json", "--output", str(tmp_path), "fake"]) == 0
    assert json.loads(capsys.readouterr().out) == {"size": 1}
    assert (tmp_path / "fake.txt").is_file()


def test_people_get_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "fake", "--output", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "Sizes\nwhat  size\n----  ----\nsize  1\n"


def test_list_names_every_bench(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(registry.BENCHES)


def test_an_unknown_name_is_answered_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "speed"]) == 2
    assert f"no bench is called 'speed'; there are: {', '.join(registry.BENCHES)}" in capsys.readouterr().err


def test_what_cannot_be_had_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "fake", "--size", "-1", "--output", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "bench fake: --size must be at least 0\n"


def test_every_registered_bench_is_one() -> None:
    for name in ("ttft", "plan", "prefix"):
        bench = registry.load(name)
        assert bench.name == name
        bench.add_arguments(argparse.ArgumentParser())


def test_list_ignores_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "list", "--foo"]) == 2
    assert capsys.readouterr().err == "bench list takes no options, not --foo\n"
    assert main(["bench", "list"]) == 0
