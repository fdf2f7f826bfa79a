"""`stream2llm demo`: what it prints, and the whole of it once for real."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from stream2llm.commands.main import main
from stream2llm_bench.demo.asking import Asked, Mode
from stream2llm_bench.demo.command import figures, to_text

ASKED = {
    Mode.APPEND: (Asked("Soon.", 5.0), Asked("Soon.", 8.0)),
    Mode.UPDATE: (Asked("Soon.", 5.0), Asked("Late.", 7.5)),
}


def test_figures() -> None:
    assert figures(ASKED) == {
        "append": {"answers_equal": True, "streaming_s": 5.0, "waiting_s": 8.0, "ratio": 1.6, "answer": "Soon."},
        "update": {"answers_equal": False, "streaming_s": 5.0, "waiting_s": 7.5, "ratio": 1.5, "answer": "Soon."},
    }


def test_text_shows_both_answers_and_the_ratio() -> None:
    text = to_text("How soon?", ASKED)
    assert "append: the same text\n  streaming: Soon.\n  waiting:   Soon.\n" in text
    assert "update: DIFFERENT TEXTS\n" in text
    assert "append  5.00       8.00     1.60                 equal" in text


def test_an_unknown_policy_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--policy", "nope"])
    assert ended.value.code == 2
    assert "argument --policy: invalid choice: 'nope'" in capsys.readouterr().err


@pytest.mark.parametrize("pages", ["1", "11", "many", "-3", ""])
def test_an_impossible_number_of_pages_is_refused_with_the_limits(
    pages: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["demo", f"--pages={pages}"])
    assert ended.value.code == 2
    assert f"argument --pages: {pages!r} is not a number of pages from 2 to 10" in capsys.readouterr().err


@pytest.mark.e2e
def test_both_ways_of_asking_give_the_same_answer() -> None:
    command = [sys.executable, "-m", "stream2llm.commands.main", "demo", "--json", "--pages", "3"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert ran.returncode == 0, ran.stderr
    printed = json.loads(ran.stdout)
    assert set(printed) == {"append", "update"}
    for mode in printed.values():
        assert mode["answers_equal"] is True
        assert mode["streaming_s"] > 0
        assert mode["waiting_s"] > 0
        assert mode["answer"].strip()
