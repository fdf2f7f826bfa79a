"""Drawn histories on vLLM's real CPU engine: greedy tokens equal those of stock vLLM given everything at once."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from driving import References
from engines import Engine
from histories import History, histories, run_history
from hypothesis import given, settings

pytestmark = pytest.mark.engine
HISTORIES = int(os.environ.get("STREAM2LLM_TEST_HISTORIES", "200"))


def check(engines: Callable[[bool], Engine], references: References, history: History) -> None:
    outputs = run_history(engines(history.asynchronous), history)
    streams = [history.streams[index] for index in outputs]
    for output, stream in zip(outputs.values(), streams, strict=True):
        [expected] = references.of([stream.prompts()[-1]], stream.output_tokens)
        assert output == expected


@settings(max_examples=HISTORIES, deadline=None)
@given(history=histories(most_streams=4))
def test_every_history_ends_with_the_one_shot_answer(
    real_engines: Callable[[bool], Engine], references: References, history: History
) -> None:
    check(real_engines, references, history)


@pytest.mark.long
@settings(max_examples=10 * HISTORIES, deadline=None, derandomize=False)
@given(history=histories())
def test_thousands_of_histories(
    real_engines: Callable[[bool], Engine], references: References, history: History
) -> None:
    check(real_engines, references, history)
