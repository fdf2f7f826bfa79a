"""The HorizontalPodAutoscaler's algorithm, as its documentation describes it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm_bench.autoscale.comparing import ours
from stream2llm_bench.autoscale.hpa import Autoscaler, Behavior, Metric, Policy, Rules, recommendation
from stream2llm_operator.desired.scaling import DOWN_STEP_S, DOWN_WINDOW_S, STEP_S, behavior

FREE = Behavior(
    Rules(0.0, (Policy(15.0, percent=1000.0),)), Rules(0.0, (Policy(15.0, percent=100.0),)), minimum=1, maximum=50
)


@pytest.mark.parametrize(
    ("metrics", "replicas", "expected"),
    [
        # A sum over pods: as many pods as carry it.
        ([Metric(41, 10)], 2, 5),
        ([Metric(40, 10)], 2, 4),
        # Within a tenth of the target nothing changes, also where rounding up would.
        ([Metric(43, 10)], 4, 4),
        ([Metric(45, 10)], 4, 5),
        ([Metric(37, 10)], 4, 4),
        ([Metric(0, 10)], 4, 0),
        # A value: in proportion.
        ([Metric(1.25, 1, per_pod=False)], 4, 5),
        ([Metric(1.25, 1, per_pod=False)], 1, 2),
        ([Metric(1, 1, per_pod=False)], 7, 7),
        ([Metric(0, 1, per_pod=False)], 7, 0),
        # The largest wins.
        ([Metric(10, 10), Metric(1, 1, per_pod=False)], 7, 7),
        ([Metric(90, 10), Metric(1, 1, per_pod=False)], 7, 9),
        # One missing: never down, but up.
        ([Metric(None, 10), Metric(10, 10)], 3, None),
        ([Metric(None, 10), Metric(50, 10)], 3, 5),
        ([Metric(None, 10), Metric(30, 10)], 3, 3),
        ([Metric(None, 10)], 3, None),
    ],
)
def test_what_metrics_ask_for(metrics: list[Metric], replicas: int, expected: int | None) -> None:
    assert recommendation(metrics, replicas) == expected


def test_bounds_hold() -> None:
    scaler = Autoscaler(Behavior(FREE.up, FREE.down, 2, 6))
    assert scaler.decide(0.0, 3, [Metric(1000, 10)]) == 6
    assert scaler.decide(15.0, 6, [Metric(0, 10)]) == 2


def test_shrinking_waits_for_its_window() -> None:
    scaler = Autoscaler(Behavior(FREE.up, Rules(60.0, FREE.down.policies), 1, 50))
    assert scaler.decide(0.0, 5, [Metric(50, 10)]) == 5
    for now_s in (15.0, 30.0, 45.0, 60.0):
        assert scaler.decide(now_s, 5, [Metric(10, 10)]) == 5
    assert scaler.decide(75.0, 5, [Metric(10, 10)]) == 1


def test_at_most_so_many_in_a_period() -> None:
    up = Rules(0.0, (Policy(60.0, pods=1), Policy(60.0, percent=50.0)))
    scaler = Autoscaler(Behavior(up, FREE.down, 1, 50))
    load = [Metric(1000, 10)]
    assert scaler.decide(0.0, 4, load) == 6
    assert scaler.decide(15.0, 6, load) == 6
    assert scaler.decide(45.0, 6, load) == 6
    assert scaler.decide(60.0, 6, load) == 9


def test_one_pod_down_in_a_period() -> None:
    scaler = Autoscaler(Behavior(FREE.up, Rules(0.0, (Policy(300.0, pods=1),)), 1, 50))
    assert scaler.decide(0.0, 4, [Metric(10, 10)]) == 3
    assert scaler.decide(285.0, 3, [Metric(10, 10)]) == 3
    assert scaler.decide(300.0, 3, [Metric(10, 10)]) == 2


@given(st.lists(st.tuples(st.floats(0, 1000) | st.none(), st.floats(0, 2) | st.none()), max_size=60))
def test_it_never_leaves_its_bounds_nor_moves_without_a_signal(values: list[tuple[float | None, float | None]]) -> None:
    scaler, replicas = Autoscaler(ours()), 3
    for step, (load, signal) in enumerate(values):
        before = replicas
        replicas = scaler.decide(15.0 * step, replicas, [Metric(load, 10), Metric(signal, 1, per_pod=False)])
        assert 1 <= replicas <= ours().maximum
        if load is None and signal is None:
            assert replicas == before
        if replicas < before:
            assert load is not None
            assert signal is not None


def test_the_bench_scales_as_the_operator_does() -> None:
    from stream2llm_operator.api.spec import Autoscaling

    wanted = behavior(Autoscaling.model_validate({"maxReplicas": 12}))
    up, down = ours().up, ours().down
    assert wanted["scaleUp"]["stabilizationWindowSeconds"] == up.window_s
    assert wanted["scaleDown"]["stabilizationWindowSeconds"] == down.window_s == DOWN_WINDOW_S
    assert [(policy["periodSeconds"], policy["type"], policy["value"]) for policy in wanted["scaleUp"]["policies"]] == [
        (policy.period_s, "Pods" if policy.pods else "Percent", policy.pods or policy.percent) for policy in up.policies
    ]
    assert down.policies == (Policy(DOWN_STEP_S, pods=1),)
    assert {policy.period_s for policy in up.policies} == {STEP_S}
