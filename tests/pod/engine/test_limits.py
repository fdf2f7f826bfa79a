"""What cannot be served ends by itself, and what comes too late or is not understood changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from driving import Driver, tokens
from engines import BLOCK_SIZE, MAX_MODEL_LEN, Engine, Shape
from histories import POLICIES
from invariants import check_ended

from stream2llm_pod.engine.protocol import EXTRA_ARGS_KEY, Op, OpKind
from stream2llm_pod.engine.simulation.tokens import expected_output

pytestmark = pytest.mark.simulated
LONGEST = MAX_MODEL_LEN - 1
"""One token at least must fit behind the prompt."""
PLAIN, NEIGHBOUR = tokens(40, 70), tokens(41, 90)


def start(engines: Callable[[bool], Engine], shape: Shape, *, asynchronous: bool = False) -> Driver:
    """A driver of an empty engine, with a stream and an ordinary request that nothing may harm under way."""
    engine = engines(asynchronous)
    engine.renew(shape)
    driver = Driver(engine)
    driver.open("neighbour", NEIGHBOUR[:50], 4)
    driver.add("plain", PLAIN, 4)
    driver.step(2)
    return driver


def end(driver: Driver) -> None:
    """Finish the neighbours and check that they were served as if they had been alone."""
    driver.append("neighbour", NEIGHBOUR[50:], last=True)
    driver.run()
    vocabulary = driver.engine.vocabulary
    assert driver.outputs["neighbour"] == expected_output(NEIGHBOUR, 4, vocabulary)
    assert driver.outputs["plain"] == expected_output(PLAIN, 4, vocabulary)
    check_ended(driver.engine)


# ---------------------------------------------------------------- beyond the model's length
WAYS: dict[str, Callable[[Driver, list[int]], None]] = {
    "append": lambda driver, prompt: driver.append("long", prompt[100:]),
    "last append": lambda driver, prompt: driver.append("long", prompt[100:], last=True),
    "update": lambda driver, prompt: driver.update("long", prompt),
    "last update": lambda driver, prompt: driver.update("long", tokens(43, len(prompt)), last=True),
}


@pytest.mark.parametrize("steps", [0, 1, 60], ids=["waiting", "mid-prefill", "parked"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("way", WAYS)
def test_a_prompt_that_grows_beyond_the_model_ends_with_an_error(
    simulated_engines: Callable[[bool], Engine], way: str, asynchronous: bool, steps: int
) -> None:
    driver = start(simulated_engines, Shape(), asynchronous=asynchronous)
    prompt = tokens(42, LONGEST + 1)
    driver.open("long", prompt[:100], 4)
    driver.step(steps)
    WAYS[way](driver, prompt)
    driver.run()
    assert driver.finished["long"] == "error"
    assert driver.stop_reasons["long"] == "prompt of 1024 tokens is beyond the limit of 1023 tokens"
    assert driver.outputs["long"] == []
    assert driver.scheduler.counters.failed_requests == 1
    end(driver)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_the_longest_prompt_gets_its_one_token(simulated_engines: Callable[[bool], Engine], asynchronous: bool) -> None:
    driver = start(simulated_engines, Shape(), asynchronous=asynchronous)
    prompt = tokens(42, LONGEST)
    driver.open("long", prompt[:1000], 4)
    driver.step(3)
    driver.append("long", prompt[1000:], last=True)
    driver.run()
    assert driver.finished["long"] == "length"
    assert driver.outputs["long"] == expected_output(prompt, 1, driver.engine.vocabulary)
    end(driver)


# ---------------------------------------------------------------- beyond the KV pool
BLOCKS = 5
POOL_TOKENS = BLOCKS * BLOCK_SIZE


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_prompt_larger_than_the_whole_pool_ends_with_an_error(
    simulated_engines: Callable[[bool], Engine], policy: str, asynchronous: bool
) -> None:
    driver = start(simulated_engines, Shape(blocks=BLOCKS, policy=policy), asynchronous=asynchronous)
    why = f"prompt of {POOL_TOKENS + 1} tokens is beyond the limit of {POOL_TOKENS} tokens"
    driver.add("ordinary", tokens(44, POOL_TOKENS + 1), 4)
    driver.open("opened", tokens(45, POOL_TOKENS + 1), 4)
    driver.open("grown", tokens(46, 20), 4)
    driver.step(2)
    driver.append("grown", tokens(47, POOL_TOKENS - 19))
    driver.run()
    for name in ("ordinary", "opened", "grown"):
        assert (driver.finished[name], driver.stop_reasons[name]) == ("error", why), name
        assert driver.outputs[name] == []
    end(driver)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_an_answer_that_outgrows_the_pool_ends_where_the_pool_does(
    simulated_engines: Callable[[bool], Engine], policy: str, asynchronous: bool
) -> None:
    """Stock vLLM preempts such a request and computes it again, for ever."""
    driver = start(simulated_engines, Shape(blocks=BLOCKS, policy=policy), asynchronous=asynchronous)
    driver.run()
    prompt = tokens(48, 40)
    driver.open("talker", prompt[:39], 500)
    driver.append("talker", prompt[39:], last=True)
    driver.add("ordinary", prompt, 500)
    driver.run()
    # The last token's own keys and values need no room: nothing comes after it.
    whole = expected_output(prompt, POOL_TOKENS - len(prompt) + 1, driver.engine.vocabulary)
    for name in ("talker", "ordinary"):
        assert driver.finished[name] == "length"
        assert driver.outputs[name] == whole, name
    end(driver)


# ---------------------------------------------------------------- too late, or for nobody
LATE: dict[str, Callable[[Driver], None]] = {
    "append": lambda driver: driver.append("late", [7, 8, 9]),
    "last append": lambda driver: driver.append("late", [7, 8, 9], last=True),
    "update": lambda driver: driver.update("late", tokens(50, 30)),
    "finish": lambda driver: driver.finish("late"),
    "open": lambda driver: driver.open("late", tokens(51, 30)),
    "ordinary request": lambda driver: driver.add("late", tokens(52, 30)),
}


@pytest.mark.parametrize("what", LATE)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_nothing_changes_a_finished_stream(
    simulated_engines: Callable[[bool], Engine], what: str, asynchronous: bool
) -> None:
    driver = start(simulated_engines, Shape(), asynchronous=asynchronous)
    prompt = tokens(49, 80)
    driver.open("late", prompt, 6)
    driver.finish("late")
    LATE[what](driver)
    driver.step(4)
    assert "late" not in driver.finished
    LATE[what](driver)
    driver.run()
    assert driver.outputs["late"] == expected_output(prompt, 6, driver.engine.vocabulary)
    assert driver.scheduler.counters.ignored_operations == 2
    end(driver)


@pytest.mark.parametrize("what", [what for what in LATE if what not in ("open", "ordinary request")])
@pytest.mark.parametrize("past", ["unknown", "ended", "aborted"])
def test_what_comes_for_a_stream_that_is_not_there_is_ignored(
    simulated_engines: Callable[[bool], Engine], what: str, past: str
) -> None:
    driver = start(simulated_engines, Shape())
    if past != "unknown":
        driver.open("late", tokens(49, 40), 2)
        driver.step(2)
        driver.abort("late") if past == "aborted" else driver.finish("late")
        driver.run()
    before = list(driver.outputs["late"])
    LATE[what](driver)
    assert "late" not in driver.scheduler.requests
    driver.run()
    assert driver.outputs["late"] == before
    assert driver.scheduler.counters.ignored_operations == 1
    end(driver)


@pytest.mark.parametrize("what", ["open", "ordinary request"])
def test_the_id_of_an_open_stream_is_taken(simulated_engines: Callable[[bool], Engine], what: str) -> None:
    driver = start(simulated_engines, Shape())
    prompt = tokens(49, 80)
    driver.open("late", prompt[:50], 4)
    LATE[what](driver)
    driver.step(3)
    LATE[what](driver)
    driver.append("late", prompt[50:], last=True)
    driver.run()
    assert driver.outputs["late"] == expected_output(prompt, 4, driver.engine.vocabulary)
    assert driver.scheduler.counters.ignored_operations == 2
    end(driver)


def test_the_id_of_an_ordinary_request_is_taken(simulated_engines: Callable[[bool], Engine]) -> None:
    driver = start(simulated_engines, Shape())
    prompt = tokens(49, 80)
    driver.add("late", prompt, 4)
    for act in LATE.values():
        act(driver)
    driver.run()
    assert driver.outputs["late"] == expected_output(prompt, 4, driver.engine.vocabulary)
    assert driver.scheduler.counters.ignored_operations == len(LATE)
    end(driver)


# ---------------------------------------------------------------- extra arguments of the OpenAI API
@pytest.mark.parametrize(
    "extra_args",
    [
        {EXTRA_ARGS_KEY: 5},
        {EXTRA_ARGS_KEY: "open"},
        {EXTRA_ARGS_KEY: []},
        {EXTRA_ARGS_KEY: {}},
        {EXTRA_ARGS_KEY: {"op": "explode"}},
        {EXTRA_ARGS_KEY: {"op": None, "last": True}},
        {EXTRA_ARGS_KEY: {"op": ["open"]}},
        {EXTRA_ARGS_KEY: {"op": {"open": 1}}},
    ],
    ids=repr,
)
def test_an_operation_that_is_none_makes_an_ordinary_request(
    simulated_engines: Callable[[bool], Engine], extra_args: dict[str, Any]
) -> None:
    driver = start(simulated_engines, Shape())
    prompt = tokens(53, 60)
    driver.send("client", prompt, extra_args, max_tokens=4)
    driver.run()
    assert driver.outputs["client"] == expected_output(prompt, 4, driver.engine.vocabulary)
    assert driver.scheduler.counters.ignored_operations == 1
    end(driver)


@pytest.mark.parametrize("extra_args", [None, {}, {EXTRA_ARGS_KEY: None}, {"other": {"op": "open"}}], ids=repr)
def test_other_extra_arguments_are_nothing_to_us(
    simulated_engines: Callable[[bool], Engine], extra_args: dict[str, Any] | None
) -> None:
    driver = start(simulated_engines, Shape())
    prompt = tokens(53, 60)
    driver.send("client", prompt, extra_args, max_tokens=4)
    driver.run()
    assert driver.outputs["client"] == expected_output(prompt, 4, driver.engine.vocabulary)
    assert driver.scheduler.counters.ignored_operations == 0
    end(driver)


def test_a_stream_without_token_ids_ends_with_an_error(simulated_engines: Callable[[bool], Engine]) -> None:
    import torch

    driver = start(simulated_engines, Shape())
    embeds = torch.zeros(4, driver.engine.core.vllm_config.model_config.get_hidden_size())
    driver.send("embedded", None, Op(OpKind.OPEN).to_extra_args(), max_tokens=4, prompt_embeds=embeds)
    driver.run()
    assert (driver.finished["embedded"], driver.stop_reasons["embedded"]) == ("error", "a stream takes token ids only")
    end(driver)


# ---------------------------------------------------------------- sleep
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_the_engine_sleeps_while_there_are_only_parked_streams(
    simulated_engines: Callable[[bool], Engine], policy: str, asynchronous: bool
) -> None:
    """Memory for a third of them: the others have been preempted and wait, with nothing new to compute."""
    engine = simulated_engines(asynchronous)
    engine.renew(Shape(blocks=14, policy=policy, slots=32))
    driver = Driver(engine)
    prompts = [tokens(60 + i, 60 + i) for i in range(20)]
    calls: list[None] = []
    scheduler = engine.scheduler
    schedule = scheduler.schedule

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        return schedule(*args, **kwargs)

    scheduler.schedule = counted
    for i, prompt in enumerate(prompts):
        driver.open(f"parked-{i}", prompt[:-5], 4)
    driver.run()
    # What the engine core's loop looks at before it blocks.
    assert not scheduler.has_unfinished_requests()
    assert len(scheduler.requests) == len(prompts)
    before = len(calls)
    assert driver.step(10) == 0
    assert len(calls) == before
    # A new chunk wakes the engine, and it goes to sleep again.
    driver.append("parked-7", prompts[7][-5:])
    assert scheduler.has_unfinished_requests()
    driver.run()
    assert not scheduler.has_unfinished_requests()
    before = len(calls)
    assert driver.step(10) == 0
    assert len(calls) == before
    for i, prompt in enumerate(prompts):
        if i != 7:
            driver.append(f"parked-{i}", prompt[-5:])
        driver.finish(f"parked-{i}")
    driver.run()
    vocabulary = engine.vocabulary
    for i, prompt in enumerate(prompts):
        assert driver.outputs[f"parked-{i}"] == expected_output(prompt, 4, vocabulary)
    del scheduler.schedule
    check_ended(engine)
