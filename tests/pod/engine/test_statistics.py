"""The engine's figures on their way to /metrics: every series is there from the start, and nothing is lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from stream2llm_pod.engine.counting import CAUSES, DIRECTIONS, GAUGES, TOTALS, Counters
from stream2llm_pod.engine.statistics import Reporter, StreamStats, joined

pytestmark = pytest.mark.simulated


class Scheduler:
    """What a reporter asks of one."""

    def __init__(self) -> None:
        self.counters = Counters()

    def has_unfinished_requests(self) -> bool:
        return False


@pytest.fixture
def exported() -> tuple[Any, CollectorRegistry]:
    from stream2llm_pod.engine.statistics import StreamPromMetrics

    registry = CollectorRegistry()

    def into(kind: Any) -> Any:
        return lambda **kwargs: kind(registry=registry, **kwargs)

    metrics = StreamPromMetrics(
        SimpleNamespace(
            additional_config={"stream2llm": {"namespace": "n", "pool": "p", "pod": "x"}}, kv_transfer_config=None
        ),
        {Counter: into(Counter), Gauge: into(Gauge), Histogram: into(Histogram)},
        ["engine"],
        {0: ["0"]},
    )
    return metrics, registry


LABELS = {"namespace": "n", "pool": "p", "pod": "x", "engine": "0"}


def series() -> list[tuple[str, dict[str, str]]]:
    found: list[tuple[str, dict[str, str]]] = []
    for kind in ("recompute", "swap"):
        for cause in CAUSES:
            labels = {"kind": kind, "cause": cause}
            found += [
                ("stream2llm_preemptions_total", labels),
                ("stream2llm_preemption_cost_seconds_total", labels),
            ]
    found += [("stream2llm_swapped_bytes_total", {"direction": direction}) for direction in DIRECTIONS]
    found += [
        ("stream2llm_cost_model_correction_ratio", {"curve": curve}) for curve in ("prefill", "swap_out", "swap_in")
    ]
    return found


def test_every_series_is_there_at_0(exported: tuple[Any, CollectorRegistry]) -> None:
    _, registry = exported
    for name, labels in series():
        assert registry.get_sample_value(name, {**LABELS, **labels}) == 0, (name, labels)


def test_what_is_counted_arrives(exported: tuple[Any, CollectorRegistry]) -> None:
    metrics, registry = exported
    scheduler = Scheduler()
    reporter = Reporter(scheduler)
    counters = scheduler.counters
    for _ in range(2):
        counters.preempted("swap", "memory", 1500.0)
        counters.preempted("recompute", "policy", 250.0)
        counters.swapped_bytes["out"] += 100
        counters.corrections = {"prefill": 2.0, "swap_out": 0.5, "swap_in": 1.0}
        report = reporter.take()
        assert report is not None
        metrics.observe(report.to_dict())
    expected = {
        ("stream2llm_preemptions_total", "swap", "memory"): 2,
        ("stream2llm_preemptions_total", "recompute", "policy"): 2,
        ("stream2llm_preemptions_total", "swap", "policy"): 0,
        ("stream2llm_preemption_cost_seconds_total", "swap", "memory"): 3.0,
        ("stream2llm_preemption_cost_seconds_total", "recompute", "policy"): 0.5,
    }
    for (name, kind, cause), value in expected.items():
        assert registry.get_sample_value(name, {**LABELS, "kind": kind, "cause": cause}) == value
    for direction, value in (("out", 200), ("in", 0)):
        assert registry.get_sample_value("stream2llm_swapped_bytes_total", {**LABELS, "direction": direction}) == value
    name = "stream2llm_cost_model_correction_ratio"
    assert registry.get_sample_value(name, {**LABELS, "curve": "swap_out"}) == 0.5


def test_a_report_says_only_what_changed() -> None:
    scheduler = Scheduler()
    reporter = Reporter(scheduler)
    assert reporter.take() is None
    scheduler.counters.preempted("swap", "memory", 0.0)
    report = reporter.take()
    assert report is not None
    assert report.data == {"preemptions.swap.memory": 1}
    assert reporter.take() is None


def test_two_reports_are_one() -> None:
    earlier = {"prefill_tokens": 3, "plan_durations_s": [0.1], "open_streams": 2, "progress": {"a": [1, 0]}}
    later = {"prefill_tokens": 4, "plan_durations_s": [0.2], "open_streams": 1, "progress": {"b": [2, 0]}}
    assert joined(earlier, later) == {
        "prefill_tokens": 7,
        "plan_durations_s": [0.1, 0.2],
        "open_streams": 1,
        "progress": {"a": [1, 0], "b": [2, 0]},
    }
    assert StreamStats(data=dict(earlier)).aggregate(StreamStats(data=later)).data.get("progress") is None


def test_all_figures_have_a_name() -> None:
    assert set(Counters().figures()) == TOTALS | GAUGES
