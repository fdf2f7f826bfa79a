"""JSON lines."""

from __future__ import annotations

import json
import logging
import sys

from stream2llm.logs import JSONLines, about


def line(message: str, *arguments: object, **more: object) -> dict[str, object]:
    record = logging.LogRecord("a.b", logging.WARNING, "f.py", 1, message, arguments, None)
    record.created, record.msecs = 1_764_460_800.25, 250.0
    record.__dict__.update(more)
    text = JSONLines().format(record)
    assert "\n" not in text
    value: dict[str, object] = json.loads(text)
    return value


def test_a_line_is_one_object() -> None:
    expected = {"time": "2025-11-30T00:00:00.250Z", "level": "WARNING", "logger": "a.b", "message": "x 1\ny"}
    assert line("x %d\ny", 1) == expected


def test_a_line_about_a_stream_names_it() -> None:
    told = line("gone", **about("t", "s"))
    assert (told["tenant"], told["stream"]) == ("t", "s")


def test_an_exception_is_part_of_the_line() -> None:
    try:
        raise ValueError("no such thing")
    except ValueError:
        told = line("failed", exc_info=sys.exc_info())
    assert str(told["exception"]).endswith("ValueError: no such thing")
