"""Drawn histories on the simulated executor: each step is checked against the tokens that were really sent."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from engines import Engine
from histories import History, histories, run_history
from hypothesis import given, settings

from stream2llm_pod.engine.simulation.tokens import expected_output

pytestmark = pytest.mark.simulated
HISTORIES = int(os.environ.get("STREAM2LLM_TEST_HISTORIES", "300"))


def check(engines: Callable[[bool], Engine], history: History) -> None:
    engine = engines(history.asynchronous)
    for index, output in run_history(engine, history).items():
        stream = history.streams[index]
        assert output == expected_output(stream.prompts()[-1], stream.output_tokens, engine.vocabulary)


@settings(max_examples=HISTORIES, deadline=None)
@given(history=histories(second_runner=True))
def test_every_history_ends_with_the_one_shot_answer(
    simulated_engines: Callable[[bool], Engine], history: History
) -> None:
    check(simulated_engines, history)
