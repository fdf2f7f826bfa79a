"""The coarse pods of `bench autoscale`: nothing is lost, nothing is held twice, and memory has its bound."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm_bench.autoscale.bench import make_report
from stream2llm_bench.autoscale.comparing import OURS, WAYS, Day, run
from stream2llm_bench.autoscale.serving import Fleet, Hardware, Stream
from stream2llm_bench.autoscale.traffic import Traffic

SMALL = Hardware(prefill_tokens_per_s=1000.0, kv_tokens=5000, max_open_streams=4, start_s=30.0)
STREAMS = st.builds(
    Stream,
    st.floats(0, 100),
    st.integers(1, 4000),
    st.floats(0.1, 30),
    st.floats(0.5, 10),
)


def served(fleet: Fleet, streams: list[Stream], until_s: float, scale: dict[int, int] | None = None) -> list[Stream]:
    todo, answered = sorted(streams, key=lambda stream: stream.start_s, reverse=True), []
    for second in range(int(until_s)):
        if scale and second in scale:
            fleet.scale(second, scale[second])
        arriving = []
        while todo and todo[-1].start_s <= second:
            arriving.append(todo.pop())
        answered += fleet.step(second, arriving)
        for pod in fleet.pods:
            assert pod.held_tokens <= pod.hardware.kv_tokens + 1e-6
            assert len(pod.streams) <= pod.hardware.max_open_streams
    return answered


def test_a_stream_alone_has_its_token_soon_after_its_end() -> None:
    stream = Stream(0.0, 2000, 10.0, 1.0)
    assert served(Fleet(SMALL, 1), [stream], 20) == [stream]
    assert stream.first_token_s == pytest.approx(10.0, abs=0.25)


def test_a_prompt_that_comes_at_once_takes_its_time() -> None:
    stream = Stream(0.0, 3000, 0.1, 1.0)
    served(Fleet(SMALL, 1), [stream], 20)
    assert stream.first_token_s == pytest.approx(3.0, abs=0.01)


@given(st.lists(STREAMS, max_size=25), st.dictionaries(st.integers(0, 200), st.integers(1, 5), max_size=6))
def test_every_stream_is_answered_once_whatever_is_scaled(streams: list[Stream], scale: dict[int, int]) -> None:
    answered = served(Fleet(SMALL, 2), streams, 1000, scale)
    assert sorted(map(id, answered)) == sorted(map(id, streams))
    for stream in streams:
        assert stream.first_token_s is not None
        assert stream.first_token_s >= stream.finish_s - 1e-6


def test_memory_that_is_short_costs_the_youngest_its_tokens() -> None:
    old, young = Stream(0.0, 4000, 20.0, 1.0), Stream(0.5, 2500, 5.0, 30.0)
    young.retrieval_s = 40.0
    fleet = Fleet(SMALL, 1)
    served(fleet, [old, young], 100)
    (pod,) = fleet.pods
    assert pod.preemptions >= 1
    assert pod.waste_s > 0
    assert old.first_token_s == pytest.approx(20.0, abs=0.3)


def test_a_pod_that_drains_finishes_what_it_has() -> None:
    fleet = Fleet(SMALL, 2)
    streams = [Stream(0.0, 100, 50.0, 1.0) for _ in range(4)]
    answered = served(fleet, streams, 100, {10: 1})
    assert len(answered) == 4
    assert len(fleet.pods) == 1


def test_traffic_is_the_same_for_a_seed_and_keeps_its_rate() -> None:
    first, again, other = Traffic().draw(1, 2.0), Traffic().draw(1, 2.0), Traffic().draw(2, 2.0)
    assert first == again != other
    flat = replace(Traffic(), night=1.0, bursts_per_hour=1e-9)
    assert len(flat.draw(3, 3.0)) == pytest.approx(2.0 * 3 * 3600, rel=0.02)


def test_a_short_day_under_each_way() -> None:
    busy = replace(Traffic(), night=1.0)
    streams = busy.draw(5, 0.5)
    days: dict[str, Day] = {way.name: run(streams, way, Hardware(), lambda _: None) for way in WAYS}
    for day in days.values():
        assert day.unanswered == 0
        assert len(day.ttft_s) == len(streams)
        assert day.replica_hours > 0.5
    figures = make_report(days).figures
    assert set(figures["ways"]) == set(days)
    assert figures["ways"][OURS]["most_pods"] > 1
    keys = {"replica_hours", "ttft_p95_ms", "lost_streams", "direction_changes"}
    assert {name: set(figures[name]) for name in ("preemption", "kv", "queue")} == dict.fromkeys(
        ("preemption", "kv", "queue"), keys
    )
    assert figures["preemption"]["replica_hours"] == figures["ways"][OURS]["replica_hours"]


def test_turning_back_counts_however_late() -> None:
    day = Day(changes=[(0.0, 1, 2), (60.0, 2, 3), (7200.0, 3, 2), (7260.0, 2, 3)])
    assert (day.direction_changes, day.reversals) == (2, 1)
