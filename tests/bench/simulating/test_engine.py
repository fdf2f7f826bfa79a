"""Runs in virtual time: exact, repeatable, and able to tell good policies from bad ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from stream2llm_bench.simulating import planning
from stream2llm_bench.simulating.engine import STOCK, Setting, SimulatedEngine
from stream2llm_bench.simulating.hardware import BUDGETS, find_hardware
from stream2llm_bench.simulating.lower_bound import lower_bound_s
from stream2llm_bench.simulating.outcome import Outcome
from stream2llm_bench.simulating.peers import RANDOM, REVERSE, registered
from stream2llm_bench.workloads.scenarios import plain
from stream2llm_bench.workloads.streams import Message, Piece, Stream

pytestmark = pytest.mark.simulated
HARDWARE = replace(find_hardware("h200-tp2"), kv_tokens=200_000)
"""Less memory takes less time to set up."""


@pytest.fixture(scope="module")
def engine() -> Iterator[SimulatedEngine]:
    with registered():
        yield SimulatedEngine()


def without_wall_time(outcome: Outcome) -> dict[str, object]:
    return {name: value for name, value in outcome.figures().items() if name != "wall_s"}


def test_a_prompt_alone_takes_what_the_hardware_says(engine: SimulatedEngine) -> None:
    stream = Stream("a", (Message(1.0, (Piece(0, 3000),)),), starts_s=2.0)
    outcome = engine.run([stream], Setting(HARDWARE, policy="fcfs", streaming=False))
    expected_s = (2 * HARDWARE.step_ms + HARDWARE.span_ms(0, 3000)) / 1e3
    # Between its points a cost profile is a straight line.
    assert outcome.ttft_s == [pytest.approx(expected_s, rel=0.005)]
    assert outcome.asker_s == [pytest.approx(1.0 + expected_s, rel=0.005)]
    assert outcome.steps == 2


def test_open_prompts_get_every_other_step_at_least_beside_many_short_whole_ones(engine: SimulatedEngine) -> None:
    """`auto` leaves them out of steps that compute a whole prompt, but never of two in a row."""
    step_s = (HARDWARE.step_ms + HARDWARE.span_ms(0, 100)) / 1e3
    growing = Stream("growing", (Message(0.0, (Piece(0, 20_000),)), Message(1.0, (Piece(1, 10),))))
    # More than one arrives in each step.
    short = [Stream(f"short-{i}", (Message(0.0, (Piece(2, 100),)),), starts_s=i * step_s) for i in range(120)]
    outcome = engine.run([growing, *short], Setting(HARDWARE, policy="auto", budget_tokens=2048))
    # 20,000 tokens are ten full steps; they are computed before the last message comes, and that takes a step or two.
    assert outcome.ttft_s[0] < 2 * (HARDWARE.step_ms + HARDWARE.span_ms(0, 2048)) / 1e3
    full = engine.run([growing, *short], Setting(HARDWARE, policy="fcfs", budget_tokens=2048))
    assert sum(outcome.ttft_s) < 0.8 * sum(full.ttft_s)


@pytest.mark.parametrize("workload", ["crawler", "anns"])
def test_a_stream_alone_is_at_its_lower_bound(engine: SimulatedEngine, workload: str) -> None:
    budget_tokens = BUDGETS[workload]
    for stream in plain(workload, 1.0, 2).draw(5):
        outcome = engine.run([stream], Setting(HARDWARE, policy="fcfs", budget_tokens=budget_tokens))
        assert outcome.ttft_s == [pytest.approx(lower_bound_s(stream, HARDWARE, budget_tokens), rel=0.02)]


def test_a_run_can_be_repeated_to_the_last_bit(engine: SimulatedEngine) -> None:
    streams = plain("anns", 4.0, 25).draw(3)
    setting = Setting(HARDWARE, policy="srpf", preemption="cost", budget_tokens=8192, kv_tokens=160_000)
    first, second = engine.run(streams, setting), engine.run(streams, setting)
    assert first.ttft_s == second.ttft_s
    assert without_wall_time(first) == without_wall_time(second)
    assert first.invalidated_tokens > 0


def test_counting_tokens_takes_the_same_decisions_as_checking_their_values(engine: SimulatedEngine) -> None:
    from stream2llm_bench.simulated_core import BLOCK_SIZE, VOCABULARY
    from stream2llm_pod.engine.simulation.worker import SimulatedWorker

    streams = plain("anns", 4.0, 12).draw(3)
    setting = Setting(HARDWARE, policy="fcfs", budget_tokens=8192, kv_tokens=100_000)
    executor = engine._core.model_executor
    counting = executor.worker
    plans: list[list[dict[str, int]]] = []
    for worker in (counting, SimulatedWorker(100_000 // BLOCK_SIZE + 1, BLOCK_SIZE, VOCABULARY)):
        plans.append([])
        executor.worker = Recording(worker, plans[-1])
        engine.run(streams, setting)
    executor.worker = counting
    assert plans[0] == plans[1]
    assert len(plans[0]) > 12


@pytest.mark.parametrize("policy", ["auto", "srpf", "fcfs", "lcas", "lcas-oldest", "mcps", RANDOM, "default"])
@pytest.mark.parametrize("workload", ["crawler", "anns"])
def test_the_short_way_gives_what_the_engine_gives(engine: SimulatedEngine, policy: str, workload: str) -> None:
    """`planning` has no engine; with room for everybody it may not differ in anything."""
    streams = plain(workload, 6.0, 40).draw(6)
    setting = Setting(
        replace(HARDWARE, kv_tokens=1_200_000),
        policy=policy,
        streaming=policy != "default",
        budget_tokens=BUDGETS[workload],
        # So that ageing takes part.
        max_wait_s=0.5,
    )
    short = planning.run(streams, setting)
    assert short is not None
    assert without_wall_time(short) == without_wall_time(engine.run(streams, setting))


def test_the_short_way_refuses_what_needs_the_engine() -> None:
    streams = plain("crawler", 6.0, 40).draw(6)
    setting = Setting(HARDWARE, policy="fcfs")
    assert planning.run(streams, replace(setting, kv_tokens=50_000)) is None
    assert planning.run(streams, replace(setting, policy="default")) is None
    assert planning.run(streams, replace(setting, policy=STOCK)) is None
    assert planning.run([replace(streams[0], tenant="other"), *streams[1:]], setting) is None


class Recording:
    """A worker, and the tokens that each step computed."""

    def __init__(self, worker: Any, plans: list[dict[str, int]]) -> None:
        self.forget = worker.forget
        self._worker, self._plans = worker, plans

    def execute(self, scheduled: Any) -> Any:
        self._plans.append(dict(scheduled.num_scheduled_tokens))
        return self._worker.execute(scheduled)


def test_streaming_beats_waiting_by_what_was_prefilled(engine: SimulatedEngine) -> None:
    streams = plain("crawler", 2.0, 40).draw(1)
    streaming, waiting = (
        engine.run(streams, Setting(HARDWARE, policy="fcfs", streaming=streaming)) for streaming in (True, False)
    )
    assert streaming.percentile_ms(50) < 0.5 * waiting.percentile_ms(50)
    assert len(streaming.ttft_s) == len(waiting.ttft_s) == 40


def test_bad_policies_are_told_apart(engine: SimulatedEngine) -> None:
    streams = plain("crawler", 8.0, 50).draw(2)
    p95_ms = {
        # Memory enough: without, an order that changes with each chunk would preempt all the time.
        policy: engine.run(streams, Setting(HARDWARE, policy=policy, kv_tokens=1_000_000)).percentile_ms(95)
        for policy in ("fcfs", "srpf", RANDOM, REVERSE)
    }
    # Against the best one. With prompts of very different lengths, first come, first served is no high standard: here
    # even a random order has a better 95th percentile.
    assert p95_ms["srpf"] < p95_ms["fcfs"], p95_ms
    assert p95_ms[RANDOM] > 1.2 * p95_ms["srpf"], p95_ms
    assert p95_ms[REVERSE] > 2 * p95_ms["srpf"], p95_ms


def test_vllms_own_streaming_input_answers_after_the_last_message(engine: SimulatedEngine) -> None:
    streams = plain("crawler", 4.0, 12).draw(2)
    setting = Setting(HARDWARE, policy=STOCK)
    stock, ours, waiting = (
        engine.run(streams, replace(setting, policy=policy, streaming=streaming))
        for policy, streaming in ((STOCK, True), ("default", True), (STOCK, False))
    )
    assert stock.unanswered == 0
    assert sum(ours.ttft_s) < 1.2 * sum(stock.ttft_s)
    assert sum(stock.ttft_s) < 0.8 * sum(waiting.ttft_s)
    with pytest.raises(ValueError, match="streaming input only appends"):
        engine.run(plain("anns", 4.0, 4).draw(2), setting)


def test_vllms_own_streaming_input_stands_still_where_memory_is_short(engine: SimulatedEngine) -> None:
    streams = plain("crawler", 6.0, 40, 3.0).draw(4)
    outcome = engine.run(streams, Setting(HARDWARE, policy=STOCK, kv_tokens=100_000))
    assert 0 < outcome.unanswered < 40
    assert outcome.figures()["unanswered"] == outcome.unanswered
    assert max(outcome.ttft_s) == float("inf")


def test_real_time_serves_the_same_streams_and_notes_what_each_step_computes(engine: SimulatedEngine) -> None:
    """The driver of `bench align` on the simulated core, whose steps take no real time."""
    from stream2llm_bench.align.real import RealTime
    from stream2llm_bench.simulating.serving import Serving

    streams = plain("crawler", 4.0, 5).draw(7)
    engine.run(streams, Setting(HARDWARE, policy="fcfs"))
    core = engine._core
    serving = Serving(core, streaming=True)
    real = RealTime(core, serving.note, skips_idle=True)
    for stream in streams:
        serving.expect(stream, real.at)
    real.run()
    assert len(serving.end(streams).ttft_s) == 5
    assert sum(step.tokens for step in real.steps) == sum(stream.final_tokens for stream in streams)
    assert all(step.ms > 0 for step in real.steps)


def test_short_memory_leads_to_preemptions_and_all_are_answered(engine: SimulatedEngine) -> None:
    streams = plain("crawler", 6.0, 40, 3.0).draw(4)
    outcomes = {
        kind: engine.run(streams, Setting(HARDWARE, policy="fcfs", preemption=kind, kv_tokens=100_000))
        for kind in ("recompute", "swap")
    }
    assert outcomes["recompute"].preemptions["recompute"] > 0 == outcomes["recompute"].preemptions["swap"]
    assert outcomes["swap"].preemptions["swap"] > 0
    assert outcomes["recompute"].recomputed_tokens > outcomes["swap"].recomputed_tokens


def test_tenants_are_reported_apart(engine: SimulatedEngine) -> None:
    streams = [
        Stream(name, (Message(0.1, (Piece(0, tokens),)),), tenant=tenant)
        for name, tokens, tenant in (("a", 100, "x"), ("b", 200, "y"), ("c", 300, "y"))
    ]
    figures = engine.run(streams, Setting(HARDWARE, policy="fcfs")).figures()
    assert {tenant: own["requests"] for tenant, own in figures["tenants"].items()} == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("kv_tokens", "message"),
    [
        (10, "KV memory must be from 32 to 4000000 tokens, not 10"),
        (2999, "the longest prompt has 3000 tokens, and KV memory or the model hold 2976"),
    ],
)
def test_what_cannot_be_run_is_refused(engine: SimulatedEngine, kv_tokens: int, message: str) -> None:
    stream = Stream("a", (Message(1.0, (Piece(0, 3000),)),))
    with pytest.raises(ValueError, match=message):
        engine.run([stream], Setting(HARDWARE, kv_tokens=kv_tokens))
