"""Swapping inside vLLM's MultiConnector, with somebody else's connector beside ours."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import second_connector
from driving import Driver, tokens
from engines import Engine, Shape, simulated_engine
from histories import History, histories, run_history
from hypothesis import given, settings
from invariants import check_ended
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

from stream2llm_pod.engine.arguments import engine_arguments
from stream2llm_pod.engine.configuring import EngineSettings
from stream2llm_pod.engine.simulation.tokens import expected_output
from stream2llm_pod.engine.swap.connector import StreamConnector, own_connector

pytestmark = pytest.mark.simulated
HISTORIES = int(os.environ.get("STREAM2LLM_TEST_HISTORIES", "40"))
SHAPE = Shape(blocks=5, budget_tokens=64, preemption="swap", host_blocks=8)


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Engine:
    return simulated_engine(tiny_model, other_connector=second_connector.CONFIGURATION)


def preempted_and_back(engine: Engine) -> Driver:
    engine.renew(SHAPE)
    driver = Driver(engine)
    driver.open("stream", tokens(1, 100), 4)
    driver.run()
    driver.add("rival", tokens(5, 150), 2)
    driver.run()
    driver.append("stream", tokens(7, 20), last=True)
    driver.run()
    return driver


def test_swapping_goes_on_and_the_other_hears_of_everything(engine: Engine) -> None:
    driver = preempted_and_back(engine)
    scheduler = engine.scheduler
    assert isinstance(scheduler.connector, MultiConnector)
    ours, other = scheduler.connector.sub_connectors
    assert own_connector(scheduler.connector) is ours
    assert isinstance(ours, StreamConnector)
    assert driver.outputs["stream"] == expected_output(tokens(1, 100) + tokens(7, 20), 4, engine.vocabulary)
    # Memory was free once the rival had ended, but it came back with its next chunk, and whole.
    assert driver.reports["stream"]["swapped_tokens"] == 100
    assert [name for name, _ in other.admitted] == ["stream", "rival", "stream"]
    # What was restored is ours; to the other it is a request with blocks and nothing of its own to load.
    assert {external for _, external in other.admitted} == {0}
    assert other.finished == ["rival", "stream"]
    check_ended(engine)


def test_both_connectors_statistics_flow(engine: Engine) -> None:
    engine.renew(SHAPE)
    driver = Driver(engine)
    driver.open("stream", tokens(1, 100), 4)
    # As the API server's process rebuilds them, by the connectors' names.
    KVConnectorFactory._registry.setdefault("SecondConnector", lambda: second_connector.SecondConnector)
    total: Any = MultiConnector.build_kv_connector_stats({})
    steps = 0
    while driver.busy:
        outputs, executed = engine.core.step_fn()
        steps += executed
        for of_client in (outputs or {}).values():
            if of_client.scheduler_stats and of_client.scheduler_stats.kv_connector_stats:
                total.aggregate(MultiConnector.build_kv_connector_stats(of_client.scheduler_stats.kv_connector_stats))
    seen = total.reduce()
    assert seen["SecondConnector"]["steps"] == steps == 2
    assert seen["StreamConnector"]["prefill_tokens"] == 100
    # The last report goes out when the stream parks and the engine falls asleep.
    assert seen["StreamConnector"]["parked_streams"] == 1
    driver.finish("stream")
    driver.run()


@settings(max_examples=HISTORIES, deadline=None)
@given(history=histories())
def test_every_history_ends_with_the_one_shot_answer(engine: Engine, history: History) -> None:
    for index, output in run_history(engine, history).items():
        stream = history.streams[index]
        assert output == expected_output(stream.prompts()[-1], stream.output_tokens, engine.vocabulary)


def test_the_other_may_be_several_already() -> None:
    several = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_producer",
        "engine_id": "e-1",
        "kv_connector_extra_config": {"connectors": [{"kv_connector": "A"}, {"kv_connector": "B"}], "rest": 1},
    }
    given_ = engine_arguments(EngineSettings(), async_scheduling=False, other_connector=several)["kv_transfer_config"]
    assert given_["kv_connector"] == "MultiConnector"
    assert (given_["kv_role"], given_["engine_id"]) == ("kv_both", "e-1")
    extra = given_["kv_connector_extra_config"]
    assert [part["kv_connector"] for part in extra["connectors"]] == ["StreamConnector", "A", "B"]
    assert extra["rest"] == 1
