"""The cost profile in a running engine: what it decides, how it is corrected, and which ones are refused."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from driving import Driver, tokens
from engines import BLOCK_SIZE, Engine, Shape, profile_of
from invariants import check_ended

from stream2llm.costprofile.document import InvalidProfile
from stream2llm_pod.engine.configuring import CONFIG_KEY, EngineSettings
from stream2llm_pod.engine.costing import read_costs

pytestmark = pytest.mark.simulated
SHORT, LONG = 40, 200
# Lines that cross at 100 tokens, out and in being half each.
FLAT = {"tokens": [1, 1000], "ms": [50.0, 50.0]}
STEEP = {"tokens": [1, 1000], "ms": [0.5, 500.0]}
FLAT_WHOLE = {"tokens": [1, 1000], "ms": [100.0, 100.0]}
STEEP_WHOLE = {"tokens": [1, 1000], "ms": [1.0, 1000.0]}
SWAP_IS_CHEAP_FOR_LONG = {"prefill": STEEP_WHOLE, "swap_out": FLAT, "swap_in": FLAT}
SWAP_IS_CHEAP_FOR_SHORT = {"prefill": FLAT_WHOLE, "swap_out": STEEP, "swap_in": STEEP}
_numbers = itertools.count()


def engine_with(engine: Engine, curves: dict[str, Any]) -> Driver:
    """A fresh scheduler with these curves and memory for the long stream only."""
    engine.renew(Shape(blocks=10, budget_tokens=256, preemption="cost", host_blocks=20, prefix_caching=False))
    config = engine.core.vllm_config
    settings: dict[str, Any] = dict(config.additional_config[CONFIG_KEY])
    settings["cost_profile"] = {**settings["cost_profile"], **curves}
    costs = read_costs(EngineSettings(**settings), config)
    engine.scheduler.costs = engine.scheduler.preemptions.costs = costs
    return Driver(engine)


@pytest.mark.parametrize(
    ("curves", "swapped_length"),
    [(SWAP_IS_CHEAP_FOR_LONG, LONG), (SWAP_IS_CHEAP_FOR_SHORT, SHORT)],
    ids=["swap is cheap for long", "swap is cheap for short"],
)
@pytest.mark.parametrize("length", [SHORT, LONG])
def test_each_victim_goes_the_way_its_curve_says(
    simulated_engines: Callable[[bool], Engine], curves: dict[str, Any], swapped_length: int, length: int
) -> None:
    driver = engine_with(simulated_engines(False), curves)
    name = f"{next(_numbers)}"
    driver.open(name, tokens(1, length), 2)
    driver.run()
    driver.add(f"{name}-rival", tokens(2, 10 * BLOCK_SIZE - 2), 2)
    how = "swap" if length == swapped_length else "recompute"
    costs = driver.scheduler.costs
    while driver.scheduler.streams[name].preemptions == 0:
        # With the corrections of the moment.
        expected_ms = costs.swap_ms(length) if how == "swap" else costs.recompute_ms(length)
        driver.step()
    counters = driver.scheduler.counters
    assert {key: count for key, count in counters.preemptions.items() if count} == {(how, "memory"): 1}
    assert counters.preemption_cost_s[how, "memory"] == pytest.approx(expected_ms / 1e3)
    driver.finish(name)
    driver.run()
    check_ended(driver.engine)


def test_steps_that_take_longer_than_predicted_raise_the_correction(
    simulated_engines: Callable[[bool], Engine],
) -> None:
    """The simulated hardware needs 4 ms and 20 µs a token; the profile promises half of that."""
    halved = {"prefill": {"tokens": [50, 250], "ms": [2.5, 4.5]}}
    driver = engine_with(simulated_engines(False), halved)
    costs = driver.scheduler.costs
    assert costs.corrections == {"prefill": 1.0, "swap_out": 1.0, "swap_in": 1.0}
    for _ in range(60):
        driver.add(f"{next(_numbers)}", tokens(next(_numbers) % 50, 250), 1)
        driver.run()
    assert costs.corrections["prefill"] == pytest.approx(2.0, rel=0.01)
    assert costs.corrections["swap_out"] == 1.0
    assert driver.scheduler.counters.corrections["prefill"] == pytest.approx(2.0, rel=0.02)


def test_the_backlog_in_seconds_is_what_the_profile_says(simulated_engines: Callable[[bool], Engine]) -> None:
    driver = engine_with(simulated_engines(False), SWAP_IS_CHEAP_FOR_LONG)
    names = [f"{next(_numbers)}" for _ in range(2)]
    driver.open(names[0], tokens(1, 100), 1)
    driver.run()
    driver.append(names[0], tokens(2, 60))
    driver.add(names[1], tokens(3, 50), 1)
    counters = driver.scheduler.counters
    driver.scheduler._observe()
    assert counters.prefill_backlog_tokens == 110
    ratio = driver.scheduler.costs.corrections["prefill"]
    # STEEP_WHOLE: 1 ms a token.
    assert counters.prefill_backlog_seconds == pytest.approx(0.110 * ratio)
    driver.finish(names[0])
    driver.run()
    driver.scheduler._observe()
    assert (counters.prefill_backlog_tokens, counters.prefill_backlog_seconds) == (0, 0.0)


def test_without_a_profile_costs_are_learnt_from_the_steps(simulated_engines: Callable[[bool], Engine]) -> None:
    engine = simulated_engines(False)
    engine.renew(Shape(blocks=10, budget_tokens=256, preemption="recompute", prefix_caching=False))
    driver = Driver(engine)
    counters = driver.scheduler.counters
    name = f"{next(_numbers)}"
    driver.open(name, tokens(1, LONG), 2)
    driver.run()
    # The simulated hardware needs 4 ms and 20 us a token.
    step_ms = 4 + 0.02 * LONG
    driver.add(f"{name}-rival", tokens(2, 10 * BLOCK_SIZE - 2), 2)
    while driver.scheduler.streams[name].preemptions == 0:
        driver.scheduler._observe()
        assert counters.prefill_backlog_seconds == pytest.approx(
            counters.prefill_backlog_tokens * step_ms / LONG / 1e3, rel=0.01
        )
        driver.step()
    assert counters.preemption_cost_s["recompute", "memory"] == pytest.approx(step_ms / 1e3, rel=0.01)
    driver.finish(name)
    driver.run()
    check_ended(driver.engine)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpu": "NVIDIA-H200"}, "gpu: profile has NVIDIA-H200, this engine has cpu"),
        ({"block_size": 16}, "block_size: profile has 16, this engine has 32"),
        ({"model": "other"}, "model: profile has other, this engine has"),
        ({"vllm_version": "0.31.0"}, "vllm_minor: profile has 0.31, this engine has"),
    ],
)
def test_a_profile_of_another_engine_is_refused(
    simulated_engines: Callable[[bool], Engine], change: dict[str, Any], message: str
) -> None:
    config = simulated_engines(False).core.vllm_config
    settings = EngineSettings(cost_profile={**profile_of(config, swap_is_cheap=True), **change})
    with pytest.raises(ValueError, match=r"the cost profile is of another engine \(.*" + message):
        read_costs(settings, config)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"prefill": {"tokens": [1, 100], "ms": [1.0, -1.0]}}, "prefill"),
        ({"swap_in": {"tokens": [100, 1], "ms": [1.0, 2.0]}}, "swap_in"),
        ({"swap_out": {"tokens": [1, 2], "ms": [1.0, 1e9]}}, "swap_out"),
        ({"schema": 9}, "schema"),
    ],
)
def test_a_bad_profile_is_refused(
    simulated_engines: Callable[[bool], Engine], change: dict[str, Any], field: str
) -> None:
    config = simulated_engines(False).core.vllm_config
    settings = EngineSettings(cost_profile={**profile_of(config, swap_is_cheap=True), **change})
    with pytest.raises(InvalidProfile) as refused:
        read_costs(settings, config)
    assert refused.value.field.startswith(field)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"preemption": "drop"}, "preemption 'drop' is not known; choose one of cost, recompute, swap"),
        ({"preemption": "cost"}, "preemption 'cost' needs a cost profile"),
        ({"swap_bytes": -1}, "swap_bytes must be from 0 to"),
        ({"min_residency_s": float("nan")}, "min_residency_s must be 0 or more and finite, not nan"),
    ],
)
def test_bad_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineSettings(**change)


def test_without_a_profile_there_are_no_costs(simulated_engines: Callable[[bool], Engine]) -> None:
    assert read_costs(EngineSettings(), simulated_engines(False).core.vllm_config) is None
    assert not EngineSettings(preemption="swap").swaps
    assert not EngineSettings(swap_bytes=1).swaps
    assert dataclasses.replace(EngineSettings(preemption="swap"), swap_bytes=1).swaps
