"""Steps on the simulated executor take what a cost profile says, and virtual time passes over what nobody does."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from driving import Driver, tokens
from engines import Engine, Shape, profile_of

from stream2llm.costprofile import parse_profile
from stream2llm_pod.engine.simulation.driving import Stuck, VirtualTime
from stream2llm_pod.engine.simulation.timing import StepTimes, cost_model
from stream2llm_pod.engine.swap.backend import Direction
from stream2llm_pod.engine.swap.hostpool import Copies
from stream2llm_pod.engine.swap.metadata import SwapMetadata
from stream2llm_pod.scheduling.costs import CostCurve, CostModel, Preemption
from stream2llm_pod.scheduling.victims import Preemptions

pytestmark = pytest.mark.simulated
BLOCK_SIZE = 32


def line(ms_per_token: float, overhead_ms: float) -> dict[str, list[float]]:
    return {"tokens": [1, 1024], "ms": [overhead_ms + ms_per_token, overhead_ms + 1024 * ms_per_token]}


@pytest.fixture
def engine(simulated_engines: Callable[[bool], Engine]) -> Any:
    """One whose steps take 10 ms and 1 ms a token, and whose copies 25 ms and a quarter each way."""
    engine = simulated_engines(False)
    document = profile_of(engine.core.vllm_config, swap_is_cheap=True)
    copy = line(0.25, 25.0)
    engine.core.model_executor.use_profile({**document, "prefill": line(1.0, 10.0), "swap_out": copy, "swap_in": copy})
    yield engine
    engine.core.model_executor.use_profile(None)


# ---------------------------------------------------------------- the time of a step
def test_a_prompt_takes_its_steps_and_each_output_token_one_more(engine: Engine) -> None:
    engine.renew(Shape(budget_tokens=64))
    driver = Driver(engine)
    started_s = engine.clock()
    driver.add("a", tokens(1, 100), max_tokens=3)
    driver.run()
    # 64 and 36 tokens, then two decodes of one token each; the last output token is never computed.
    expected_ms = (10 + 64) + (10 + 36) + 2 * (10 + 1)
    assert 1e3 * (engine.clock() - started_s) == pytest.approx(expected_ms)


def test_a_step_with_several_requests_pays_its_overhead_once(engine: Engine) -> None:
    engine.renew(Shape(budget_tokens=256))
    driver = Driver(engine)
    started_s = engine.clock()
    for name in ("a", "b"):
        driver.add(name, tokens(1 if name == "a" else 2, 50), max_tokens=1)
    driver.run()
    assert 1e3 * (engine.clock() - started_s) == pytest.approx(10 + 100)


def step(out: int = 0, into: int = 0, computed: int = 0, scheduled: int = 0) -> Any:
    """A scheduler's output with one running request and copies of so many blocks."""
    copies = Copies([(i, i) for i in range(out)], [(i, i) for i in range(into)])
    return SimpleNamespace(
        kv_connector_metadata=SwapMetadata(copies),
        total_num_scheduled_tokens=scheduled,
        num_scheduled_tokens={"a": scheduled},
        scheduled_new_reqs=[],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=["a"] if scheduled else [], num_computed_tokens=[computed] if scheduled else []
        ),
    )


@pytest.fixture
def times() -> StepTimes:
    def curve(ms_per_token: float, overhead_ms: float) -> CostCurve:
        return CostCurve([(1, overhead_ms + ms_per_token), (1024, overhead_ms + 1024 * ms_per_token)])

    return StepTimes(CostModel(curve(1.0, 10.0), curve(0.25, 25.0), curve(0.5, 25.0)), BLOCK_SIZE, staging_blocks=16)


def test_computing_waits_for_what_comes_in(times: StepTimes) -> None:
    ended_s, copies = times.step(step(into=2, scheduled=30), 1.0)
    assert ended_s == pytest.approx(1.0 + (25 + 0.5 * 64) / 1e3 + 40 / 1e3)
    assert [(copy.direction, copy.blocks, copy.seconds) for copy in copies] == [(Direction.IN, 2, pytest.approx(0.057))]


def test_computing_does_not_wait_for_what_goes_out(times: StepTimes) -> None:
    ended_s, copies = times.step(step(out=10, scheduled=30), 1.0)
    assert ended_s == pytest.approx(1.040)
    assert [(copy.direction, copy.blocks, copy.seconds) for copy in copies] == [
        (Direction.OUT, 10, pytest.approx(0.105))
    ]


def test_computing_waits_for_what_goes_out_beyond_the_staging_buffer(times: StepTimes) -> None:
    # 32 blocks take 281 ms; the last 16 of them leave behind the step's back.
    ended_s, copies = times.step(step(out=32, scheduled=30), 1.0)
    assert ended_s == pytest.approx(1.0 + 0.281 / 2 + 0.040)
    assert copies[0].seconds == pytest.approx(0.281)


def test_what_comes_in_waits_for_what_still_goes_out(times: StepTimes) -> None:
    times.step(step(out=10, scheduled=30), 1.0)
    # The bus is busy until 1.105.
    ended_s, _ = times.step(step(out=1, into=2, scheduled=30), 1.040)
    assert ended_s == pytest.approx(1.105 + (25 + 0.25 * 32) / 1e3 + 0.057 + 0.040)


def test_a_step_of_copies_alone_takes_their_time_only(times: StepTimes) -> None:
    assert times.step(step(), 1.0) == (1.0, [])
    assert times.step(step(into=2), 1.0)[0] == pytest.approx(1.057)


def test_a_decoding_request_adds_the_slope_at_its_length(times: StepTimes) -> None:
    assert times.step(step(computed=500, scheduled=1), 0.0)[0] == pytest.approx(0.011)


# ---------------------------------------------------------------- virtual time
def test_time_jumps_over_what_nobody_does(engine: Engine) -> None:
    engine.renew(Shape(budget_tokens=64))
    driver = Driver(engine)
    started_s = engine.clock()
    seen: list[tuple[str, float]] = []
    time = VirtualTime(engine.core, lambda output, now_s: seen.append((output.request_id, now_s - started_s)))
    time.at(started_s + 1000.0, lambda: driver.append("a", tokens(1, 60)[50:], last=True))
    time.at(started_s + 5.0, lambda: driver.open("a", tokens(1, 50), max_tokens=1))
    time.run()
    # The chunk arrives at 1,000 s and takes one step of 10 tokens.
    assert seen == [("a", pytest.approx(1000.020))]
    assert time.steps == 2


def test_what_falls_into_a_step_takes_effect_after_it(engine: Engine) -> None:
    engine.renew(Shape(budget_tokens=64))
    driver = Driver(engine)
    started_s = engine.clock()
    order: list[tuple[str, float]] = []
    time = VirtualTime(engine.core, lambda output, now_s: order.append((output.request_id, now_s - started_s)))

    def arrive(name: str, seed: int) -> None:
        order.append((f"arrival of {name}", engine.clock() - started_s))
        driver.add(name, tokens(seed, 40), max_tokens=1)

    time.at(started_s, lambda: arrive("a", 1))
    time.at(started_s + 0.020, lambda: arrive("b", 2))
    time.run()
    assert order == [
        ("arrival of a", pytest.approx(0.0)),
        ("a", pytest.approx(0.050)),
        ("arrival of b", pytest.approx(0.050)),
        ("b", pytest.approx(0.100)),
    ]


def test_an_engine_that_stands_still_for_ever_is_found_out(engine: Engine) -> None:
    engine.renew(Shape(stock=True, blocks=20, budget_tokens=256, prefix_caching=False))
    driver = Driver(engine)
    time = VirtualTime(engine.core, lambda *_: None)
    # Stock vLLM: two streaming sessions park with all blocks, and an ordinary request waits for them for ever.
    for seed, name in ((1, "a"), (2, "b")):
        time.at(0.0, lambda name=name, seed=seed: driver.send(name, tokens(seed, 310), resumable=True))  # type: ignore[misc]
    time.at(engine.clock() + 100.0, lambda: driver.add("c", tokens(3, 100)))
    with pytest.raises(Stuck, match="requests are left and no step does anything"):
        time.run()
    engine.abandon()


# ---------------------------------------------------------------- choices
SHORT, LONG = 64, 480


@pytest.mark.parametrize("exchanged", [False, True])
def test_each_victim_goes_the_way_that_its_length_says(engine: Engine, exchanged: bool) -> None:
    """1 ms a token against 50 ms and half a millisecond: they cross at 100 tokens. Exchanged, the other way round."""
    scheduler = engine.renew(
        Shape(policy="fcfs", blocks=20, budget_tokens=1024, preemption="cost", host_blocks=40, prefix_caching=False)
    )

    def curve(ms_per_token: float, overhead_ms: float) -> CostCurve:
        return CostCurve([(1, overhead_ms + ms_per_token), (1024, overhead_ms + 1024 * ms_per_token)])

    costs = CostModel(curve(1.0, 0.0), curve(0.25, 25.0), curve(0.25, 25.0))
    if exchanged:
        costs = CostModel(curve(0.5, 50.0), curve(0.5, 0.0), curve(0.5, 0.0))
    scheduler.costs = costs
    scheduler.preemptions = Preemptions("cost", costs, scheduler.host_pool.has_room)
    driver = Driver(engine)
    driver.open("short", tokens(1, SHORT))
    driver.open("long", tokens(2, LONG))
    driver.run()
    driver.add("whole", tokens(3, 600), max_tokens=2)
    driver.step()
    swapped, recomputed = ("short", "long") if exchanged else ("long", "short")
    assert scheduler.host_pool.holders == {swapped}
    by_kind = {kind: count for (kind, cause), count in scheduler.counters.preemptions.items() if cause == "memory"}
    assert by_kind == {"swap": 1, "recompute": 1}
    driver.finish("short")
    driver.finish("long")
    driver.run()
    assert driver.reports[recomputed]["recomputed_tokens"] > 0
    assert driver.reports[swapped]["recomputed_tokens"] <= 1


def test_a_profile_becomes_its_model(engine: Engine) -> None:
    document = profile_of(engine.core.vllm_config, swap_is_cheap=False)
    costs = cost_model(parse_profile(document))
    assert (costs.recompute_ms(100), costs.swap_ms(100)) == (pytest.approx(100.0), pytest.approx(200_000.0))
    assert Preemption.RECOMPUTE == "recompute"
