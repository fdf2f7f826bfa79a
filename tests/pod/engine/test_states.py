"""Append, update and finish in each state of a request: greedy tokens equal the one-shot run."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from driving import Answers, Driver, tokens
from engines import Engine, Shape
from invariants import check_ended

OLD = tokens(1, 100)
_numbers = itertools.count()
STATES = ("waiting", "mid-prefill", "parked", "preempted")
# Longest common prefix: none, inside a block, on a block's edge, inside a later one, all of the old prompt.
KEPT = (0, 10, 32, 64, 70, 100)
UPDATES = {
    f"keep {kept} add {added}": OLD[:kept] + tokens(2, added) for kept in KEPT for added in (0, 1, 50) if kept + added
}
APPENDS = {f"append {added}": OLD + tokens(2, added) for added in (0, 1, 28, 60)}


def bring_to(driver: Driver, name: str, state: str) -> None:
    """An open stream with the prompt OLD, in `state`."""
    if state == "mid-prefill":
        # The case before has left this very prompt in the prefix cache; it would be computed at once.
        assert driver.scheduler.kv_cache_manager.reset_prefix_cache()
    driver.open(name, OLD, 4)
    if state == "mid-prefill":
        driver.step(2)
        assert 0 < driver.scheduler.requests[name].num_computed_tokens < len(OLD)
    elif state in ("parked", "preempted"):
        driver.run()
        assert driver.scheduler.requests[name].num_computed_tokens == len(OLD)
    if state == "preempted":
        # Whole prompts take memory from parked streams: one that needs all of it takes all of theirs.
        rival = f"{name}-rival"
        driver.add(rival, tokens(5, 120), 2)
        driver.run()
        assert driver.scheduler.streams[name].preemptions == 1


def engine_for(engines: Callable[[bool], Engine], state: str, asynchronous: bool, caching: bool) -> Driver:
    engine = engines(asynchronous)
    engine.renew(Shape(blocks=6 if state == "preempted" else 40, budget_tokens=32, prefix_caching=caching))
    return Driver(engine)


@pytest.mark.parametrize("caching", [True, False], ids=["caching", "no-caching"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("state", STATES)
def test_updates(
    engines: Callable[[bool], Engine], answers: Answers, state: str, asynchronous: bool, caching: bool
) -> None:
    expected = answers.of(list(UPDATES.values()), 4)
    driver = engine_for(engines, state, asynchronous, caching)
    for (case, prompt), tokens_of_reference in zip(UPDATES.items(), expected, strict=True):
        for ending in ("last", "finish at once", "finish later"):
            name = f"{next(_numbers)} {case} {ending}"
            bring_to(driver, name, state)
            driver.update(name, prompt, last=ending == "last")
            if ending == "finish later":
                driver.run()
            if ending != "last":
                driver.finish(name)
            driver.run()
            assert driver.outputs[name] == tokens_of_reference, name
    check_ended(driver.engine)


@pytest.mark.parametrize("caching", [True, False], ids=["caching", "no-caching"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("state", STATES)
def test_appends(
    engines: Callable[[bool], Engine], answers: Answers, state: str, asynchronous: bool, caching: bool
) -> None:
    expected = answers.of(list(APPENDS.values()), 4)
    driver = engine_for(engines, state, asynchronous, caching)
    for (case, prompt), tokens_of_reference in zip(APPENDS.items(), expected, strict=True):
        for ending in ("last", "finish later"):
            name = f"{next(_numbers)} {case} {ending}"
            chunk = prompt[len(OLD) :]
            bring_to(driver, name, state)
            if chunk:
                driver.append(name, chunk, last=ending == "last")
            if ending == "finish later":
                driver.run()
            if ending == "finish later" or not chunk:
                driver.finish(name)
            driver.run()
            assert driver.outputs[name] == tokens_of_reference, name
    check_ended(driver.engine)


def test_shared_and_cached_blocks_keep_their_values(engines: Callable[[bool], Engine], answers: Answers) -> None:
    """One stream is updated inside blocks that another holds and a third finds in the prefix cache."""
    updated, sharer, later = OLD[:70] + tokens(6, 40), OLD[:96] + tokens(7, 20), OLD[:96] + tokens(8, 20)
    expected = answers.of([updated, sharer, later], 4)
    engine = engines(False)
    engine.renew(Shape(budget_tokens=256))
    driver = Driver(engine)
    driver.open("first", OLD, 4)
    driver.run()
    driver.open("sharer", sharer, 4)
    driver.run()
    assert any(block.ref_cnt == 2 for block in engine.scheduler.upstream.blocks("first"))
    driver.update("first", updated)
    driver.step(2)
    driver.add("later", later, 4)
    driver.finish("first")
    driver.finish("sharer")
    driver.run()
    assert [driver.outputs[name] for name in ("first", "sharer", "later")] == expected
    check_ended(engine)
