"""Small workloads in virtual time: answers never depend on how streams give way, and choices follow the curves."""

from __future__ import annotations

import pytest

from stream2llm_bench.preemption.virtual import VirtualEngine, crossing_profile
from stream2llm_bench.preemption.workloads import Kind, Workload

pytestmark = pytest.mark.simulated
SHORT = Workload("short", (Kind((200, 800), (2, 4), 2.0),), streams=20, streams_per_s=6.0)
LONG = Workload("long", (Kind((7000, 9000), (2, 3), 2.0),), streams=8, streams_per_s=1.0)
MIXED = Workload("mixed", (*SHORT.kinds, *LONG.kinds), streams=12, streams_per_s=2.0)


@pytest.fixture(scope="module")
def engine() -> VirtualEngine:
    return VirtualEngine()


def test_every_way_gives_the_same_answers_and_all_of_them(engine: VirtualEngine) -> None:
    profile = crossing_profile(engine.key)
    streams = MIXED.draw(1)
    outcomes = {way: engine.run(streams, way, profile) for way in ("recompute", "swap", "cost")}
    assert len(outcomes["cost"].ttft_ms) == len(streams)
    assert outcomes["cost"].tokens == outcomes["swap"].tokens == outcomes["recompute"].tokens
    assert all(len(tokens) == 4 for tokens in outcomes["cost"].tokens.values())
    assert outcomes["recompute"].preemptions["swap"] == 0 < outcomes["recompute"].preemptions["recompute"]
    assert outcomes["swap"].preemptions["recompute"] == 0 < outcomes["swap"].preemptions["swap"]
    assert outcomes["recompute"].recomputed_tokens > outcomes["swap"].recomputed_tokens


def test_a_run_can_be_repeated_to_the_last_digit(engine: VirtualEngine) -> None:
    profile = crossing_profile(engine.key)
    streams = MIXED.draw(2)
    # The clock goes on from run to run, so times differ in their last bits.
    first, second = (engine.run(streams, "cost", profile) for _ in range(2))
    assert first.ttft_ms == pytest.approx(second.ttft_ms, abs=1e-6)
    assert (first.preemptions, first.recomputed_tokens) == (second.preemptions, second.recomputed_tokens)


@pytest.mark.parametrize("exchanged", [False, True])
def test_short_streams_give_way_as_their_end_of_the_curves_says(engine: VirtualEngine, exchanged: bool) -> None:
    outcome = engine.run(SHORT.draw(1), "cost", crossing_profile(engine.key, exchanged=exchanged))
    chosen, other = ("swap", "recompute") if exchanged else ("recompute", "swap")
    assert outcome.preemptions[chosen] > 10 * outcome.preemptions[other]


@pytest.mark.parametrize("exchanged", [False, True])
def test_long_streams_give_way_as_theirs_does(engine: VirtualEngine, exchanged: bool) -> None:
    # Of two or three chunks each, so that what is lost is beyond the crossing at once.
    outcome = engine.run(LONG.draw(1), "cost", crossing_profile(engine.key, exchanged=exchanged))
    chosen, other = ("recompute", "swap") if exchanged else ("swap", "recompute")
    assert outcome.preemptions[chosen] > outcome.preemptions[other]
