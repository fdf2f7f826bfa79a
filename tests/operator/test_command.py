"""What `stream2llm operator` refuses before it starts."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from stream2llm_operator.command import OperatorCommand, bundled_profiles

SHIPPED = Path(__file__).resolve().parent.parent.parent / "costprofiles"


def run(*arguments: str) -> int:
    command = OperatorCommand()
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


def test_profiles_that_ship_can_all_be_read() -> None:
    found = bundled_profiles(str(SHIPPED))
    assert len(found) == len(list(SHIPPED.glob("*.json")))
    assert {profile.source for profile in found} == {"estimated", "measured"}
    assert bundled_profiles("") == ()


def test_a_profile_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("left alone")
    (tmp_path / "broken.json").write_text("{}")
    assert run("--cost-profiles", str(tmp_path)) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path}/broken.json: cost profile: schema: is missing" in said


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--cost-profiles", str(tmp_path / "no")) == 2
    assert str(tmp_path / "no") in capsys.readouterr().err


def test_a_format_of_logs_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("--log-format", "xml")
    assert "'xml' is not known; choose one of text, json" in capsys.readouterr().err
