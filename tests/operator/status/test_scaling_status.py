"""ScalingReady and status.autoscaling, from what KEDA and the HorizontalPodAutoscaler say of themselves."""

from __future__ import annotations

from typing import Any

import pytest
from scenarios import MINIMAL, pool

from stream2llm_operator.pool import Pool
from stream2llm_operator.status.deriving import Verdict
from stream2llm_operator.status.diagnosing import Finding
from stream2llm_operator.status.scaling import Scaler, scaling_status, scaling_verdict

NOW = "2026-11-30T12:00:00Z"
Conditions = dict[str, tuple[str, str]]


def scaled(replicas: int = 3, **scaling: Any) -> Pool:
    prometheus = {"serverAddress": "http://p:9090"}
    wanted = {"minReplicas": 2, "maxReplicas": 8, "prometheus": prometheus, **scaling}
    return pool({**MINIMAL, "replicas": replicas, "autoscaling": wanted})


def said(conditions: Conditions, **status: Any) -> dict[str, Any]:
    listed = [
        {"type": kind, "status": value, "reason": reason, "message": f"{reason} happened"}
        for kind, (value, reason) in conditions.items()
    ]
    return {"status": {"conditions": listed, **status}}


KEDA_READY = said({"Ready": ("True", "ScaledObjectReady")})
HPA_WORKS = said(
    {"AbleToScale": ("True", "ReadyForNewScale"), "ScalingActive": ("True", "ValidMetricFound")}, desiredReplicas=4
)


@pytest.mark.parametrize(
    ("scaler", "expected"),
    [
        (Scaler(), Verdict(None, "Pending")),
        (Scaler(trouble=Finding("ScalerMissing", "no KEDA")), Verdict(False, "ScalerMissing", "no KEDA")),
        (Scaler(said({})), Verdict(None, "Pending", "KEDA has not looked at the ScaledObject yet")),
        (Scaler(said({"Ready": ("False", "TriggerError")})), Verdict(False, "SignalsMissing", "TriggerError happened")),
        (
            Scaler(said({"Ready": ("Unknown", "PartialTriggerError")})),
            Verdict(False, "SignalsMissing", "PartialTriggerError happened"),
        ),
        (
            Scaler(said({"Ready": ("Unknown", "")})),
            Verdict(None, "Pending", "KEDA has not looked at the ScaledObject yet"),
        ),
        (
            Scaler(said({"Ready": ("True", "R"), "Fallback": ("True", "FallbackExists")})),
            Verdict(False, "SignalsMissing", "FallbackExists happened"),
        ),
        (
            Scaler(KEDA_READY, said({"ScalingActive": ("False", "FailedGetExternalMetric")})),
            Verdict(False, "SignalsMissing", "FailedGetExternalMetric happened"),
        ),
        (
            Scaler(KEDA_READY, said({"AbleToScale": ("False", "FailedGetScale")})),
            Verdict(False, "CannotScale", "FailedGetScale happened"),
        ),
        (Scaler(KEDA_READY, said({"ScalingActive": ("False", "ScalingDisabled")})), Verdict(True, "Autoscaled")),
        (Scaler(KEDA_READY, HPA_WORKS), Verdict(True, "Autoscaled")),
    ],
)
def test_the_verdict_is_what_the_autoscaler_says(scaler: Scaler, expected: Verdict) -> None:
    assert scaling_verdict(scaled(), scaler) == expected


def test_without_autoscaling_nothing_is_the_matter() -> None:
    assert scaling_verdict(pool(MINIMAL), Scaler()) == Verdict(True, "NotAutoscaled")
    assert scaling_status(pool(MINIMAL), {}, Scaler(), NOW) is None


def test_preview_is_told() -> None:
    assert scaling_verdict(scaled(mode="Preview"), Scaler(KEDA_READY, HPA_WORKS)) == Verdict(True, "Preview")


def test_an_autoscaler_without_keda_is_asked_itself() -> None:
    of = scaled(hpa={})
    assert scaling_verdict(of, Scaler()) == Verdict(None, "Pending")
    assert scaling_verdict(of, Scaler(autoscaler=HPA_WORKS)) == Verdict(True, "Autoscaled")


@pytest.mark.parametrize(("desired", "shown"), [(1, 2), (4, 4), (99, 8)])
def test_what_is_desired_keeps_to_the_bounds(desired: int, shown: int) -> None:
    status = scaling_status(scaled(), {}, Scaler(KEDA_READY, said({}, desiredReplicas=desired)), NOW)
    assert status == {"backend": "ScaledObject", "current": 3, "history": [], "desired": shown}


def test_changes_are_kept_with_their_reason_the_last_five() -> None:
    previous: dict[str, Any] = {"replicas": 3}
    scaler = Scaler(KEDA_READY, HPA_WORKS)
    previous["autoscaling"] = scaling_status(scaled(3), previous, scaler, NOW)
    assert previous["autoscaling"]["history"] == []
    for replicas in (4, 4, 5, 6, 5, 4, 3):
        previous["autoscaling"] = scaling_status(scaled(replicas), previous, scaler, NOW)
    history = previous["autoscaling"]["history"]
    assert [(decision["from"], decision["to"]) for decision in history] == [(4, 5), (5, 6), (6, 5), (5, 4), (4, 3)]
    assert {decision["reason"] for decision in history} == {"ValidMetricFound happened"}


def of_hpa(*names: str, **more: Any) -> dict[str, Any]:
    """An autoscaler at work that has figures of these metrics; '' is one that it has none of."""
    current = [{"type": "External", "external": {"metric": {"name": name}}} if name else {"type": ""} for name in names]
    return said({"ScalingActive": ("True", "ValidMetricFound")}, currentMetrics=current, **more)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (("s0-prometheus", "", "s2-prometheus", "s3-prometheus"), "no figures of prefill-backlog"),
        (("s0-prometheus", "", "", "s3-prometheus"), "no figures of prefill-backlog, kv-cache"),
        (("", "", "", ""), "no figures of open-streams, prefill-backlog, kv-cache, preemptions"),
    ],
)
def test_missing_signals_are_named_although_the_autoscaler_goes_on(metrics: tuple[str, ...], message: str) -> None:
    assert scaling_verdict(scaled(), Scaler(KEDA_READY, of_hpa(*metrics))) == Verdict(False, "SignalsMissing", message)
    failed = said({"Ready": ("False", "TriggerError")})
    expected = Verdict(False, "SignalsMissing", f"{message}: TriggerError happened")
    assert scaling_verdict(scaled(), Scaler(failed, of_hpa(*metrics))) == expected


def test_without_keda_signals_have_other_names() -> None:
    names = ["p_stream2llm_pool_open_streams", "", "p_stream2llm_pool_kv_cache_usage", "p_stream2llm_pool_x"]
    verdict = scaling_verdict(scaled(hpa={"metricPrefix": "p_"}), Scaler(autoscaler=of_hpa(*names)))
    assert verdict == Verdict(False, "SignalsMissing", "no figures of prefill-backlog, preemptions")


def test_a_change_names_the_signal_that_asked_for_it() -> None:
    scaler = Scaler(KEDA_READY, of_hpa())
    text = "able to successfully calculate a replica count from external metric s2-prometheus(&LabelSelector{…})"
    scaler.autoscaler["status"]["conditions"][0]["message"] = text  # type: ignore[index]
    before = {"autoscaling": {"backend": "ScaledObject", "current": 2, "history": []}}
    status = scaling_status(scaled(3), before, scaler, NOW)
    assert status is not None
    assert status["history"] == [{"time": NOW, "from": 2, "to": 3, "reason": "asked for by kv-cache"}]


def test_what_was_desired_stays_while_nobody_says_anything_new() -> None:
    before = {"autoscaling": {"backend": "ScaledObject", "history": [], "desired": 5}, "replicas": 3}
    status = scaling_status(scaled(3), before, Scaler(KEDA_READY, None), NOW)
    assert status is not None
    assert status["desired"] == 5
