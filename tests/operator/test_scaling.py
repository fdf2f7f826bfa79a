"""Autoscalers and monitors on a real API server, with the real schemas of KEDA and of the Prometheus operator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import foreign_crds
import pytest
from acting import condition, get, make_ready, settled
from operator_process import RunningOperator
from waiting import wait_for

pytestmark = pytest.mark.kubernetes

SCALING = {"minReplicas": 1, "maxReplicas": 8, "prometheus": {"serverAddress": "http://prometheus:9090"}}
HPA = {"maxReplicas": 8, "hpa": {}}


@pytest.fixture(scope="module")
def operator(control_plane: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningOperator]:
    for plural in ("scaledobjects", "podmonitors"):
        # Too large for a client-side apply.
        control_plane.kubectl("apply", "--server-side", "-f", str(foreign_crds.crd(plural)))
    control_plane.kubectl(
        *("wait", "--for=condition=Established", "--timeout=60s"),
        *("crd/scaledobjects.keda.sh", "crd/podmonitors.monitoring.coreos.com"),
    )
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    options = ("--pod-monitor-interval", "15s", "--pod-monitor-labels", "release=prometheus")
    with RunningOperator(control_plane.kubeconfig, log, *options) as running:
        wait_for("the operator answers", running.healthy)
        yield running
        assert "Traceback" not in log.read_text()


def names(cluster: Any, kind: str) -> list[str]:
    return [item["metadata"]["name"] for item in json.loads(cluster.kubectl("get", kind, "-o", "json"))["items"]]


def say(cluster: Any, kind: str, name: str, conditions: list[dict[str, str]], **more: Any) -> None:
    """What KEDA or the autoscaling controller would write."""
    patch = json.dumps({"status": {"conditions": conditions, **more}})
    cluster.kubectl("patch", kind, name, "--subresource=status", "--type=merge", "-p", patch)


def test_the_scaler_follows_the_spec(cluster: Any, operator: RunningOperator, minimal: dict[str, Any]) -> None:
    cluster.create({**minimal, "autoscaling": SCALING})
    wait_for("a ScaledObject", lambda: names(cluster, "scaledobjects") == ["pool"])
    made = get(cluster, "scaledobject", "pool")
    assert made["metadata"]["ownerReferences"][0]["kind"] == "StreamingPrefill"
    assert len(made["spec"]["triggers"]) == 4
    # The server has kept every field: nothing of ours is unknown to KEDA's schema.
    assert made["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]["policies"]
    cluster.patch({"spec": {"autoscaling": {"maxReplicas": 5}}})
    wait_for("the new bound", lambda: get(cluster, "scaledobject", "pool")["spec"]["maxReplicaCount"] == 5)
    cluster.patch({"spec": {"autoscaling": {"hpa": {}}}})
    wait_for("an autoscaler instead", lambda: names(cluster, "hpa") == ["pool"] and not names(cluster, "scaledobjects"))
    assert len(get(cluster, "hpa", "pool")["spec"]["metrics"]) == 4
    cluster.patch({"spec": {"autoscaling": None}})
    wait_for("nobody scales", lambda: not names(cluster, "hpa") and not names(cluster, "scaledobjects"))
    assert condition(cluster, "ScalingReady")[:2] == ("True", "NotAutoscaled")


def test_the_status_says_how_the_autoscaler_fares(
    cluster: Any, operator: RunningOperator, minimal: dict[str, Any]
) -> None:
    cluster.create({**minimal, "autoscaling": HPA})
    wait_for("an autoscaler", lambda: names(cluster, "hpa") == ["pool"])
    missing = {"type": "ScalingActive", "status": "False", "reason": "FailedGetExternalMetric", "message": "no figures"}
    times = {"lastTransitionTime": "2026-11-30T00:00:00Z"}
    say(cluster, "hpa", "pool", [{**missing, **times}], desiredReplicas=1, currentReplicas=1)
    wait_for(
        "SignalsMissing", lambda: condition(cluster, "ScalingReady") == ("False", "SignalsMissing", "no figures"), 90
    )
    found = {"type": "ScalingActive", "status": "True", "reason": "ValidMetricFound", "message": "from backlog"}
    say(cluster, "hpa", "pool", [{**found, **times}], desiredReplicas=3, currentReplicas=1)
    wait_for("Autoscaled", lambda: condition(cluster, "ScalingReady")[1] == "Autoscaled", 90)
    cluster.kubectl("scale", "spf", "pool", "--replicas=3")
    wait_for("three pods", lambda: get(cluster, "deployment", "pool")["spec"]["replicas"] == 3)

    def decided() -> bool:
        status = get(cluster, "spf", "pool")["status"].get("autoscaling", {})
        changes = [(each["from"], each["to"], each["reason"]) for each in status.get("history", ())]
        return status.get("desired") == 3 and changes == [(1, 3, "from backlog")]

    wait_for("the decision is told", decided, 90)


def test_scale_works_beside_an_autoscaler_and_bounds_hold(
    cluster: Any, operator: RunningOperator, minimal: dict[str, Any]
) -> None:
    cluster.create({**minimal, "autoscaling": {**SCALING, "minReplicas": 2}})
    wait_for("two pods", lambda: "pool" in names(cluster, "deployments"))
    assert get(cluster, "deployment", "pool")["spec"]["replicas"] == 2
    cluster.kubectl("scale", "spf", "pool", "--replicas=20")
    wait_for("no more than the bound", lambda: get(cluster, "deployment", "pool")["spec"]["replicas"] == 8)


def test_drift_is_repaired_and_nothing_is_written_without_need(
    cluster: Any, operator: RunningOperator, minimal: dict[str, Any]
) -> None:
    cluster.create({**minimal, "autoscaling": SCALING})
    wait_for("a ScaledObject", lambda: names(cluster, "scaledobjects") == ["pool"])
    for name in ("pool", "pool-router"):
        wait_for(name, lambda name=name: name in names(cluster, "deployments"))
        make_ready(cluster, name)
    before = settled(operator)
    cluster.kubectl("annotate", "spf", "pool", "somebody=elses")
    assert settled(operator) == before
    cluster.kubectl("patch", "scaledobject", "pool", "--type=merge", "-p", '{"spec":{"maxReplicaCount":99}}')
    cluster.kubectl("annotate", "spf", "pool", "somebody-")
    wait_for("the bound is back", lambda: get(cluster, "scaledobject", "pool")["spec"]["maxReplicaCount"] == 8)


def test_an_object_of_somebody_elses_is_left_alone(
    cluster: Any, operator: RunningOperator, minimal: dict[str, Any]
) -> None:
    foreign = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "pool"},
        "spec": {"maxReplicas": 2, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "other"}},
    }
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(foreign))
    cluster.create({**minimal, "autoscaling": HPA})
    wait_for("NameConflict", lambda: condition(cluster, "ScalingReady")[1] == "NameConflict")
    assert get(cluster, "hpa", "pool")["spec"]["scaleTargetRef"]["name"] == "other"


def test_behavior_that_the_api_server_refuses_is_told(
    cluster: Any, operator: RunningOperator, minimal: dict[str, Any]
) -> None:
    cluster.create({**minimal, "autoscaling": {**HPA, "behavior": {"scaleDown": {"selectPolicy": "Sometimes"}}}})
    wait_for("ScalerRejected", lambda: condition(cluster, "ScalingReady")[1] == "ScalerRejected")
    assert "selectPolicy" in condition(cluster, "ScalingReady")[2]


def test_a_monitor_is_made_that_keeps_the_pools_own_labels(
    cluster: Any, operator: RunningOperator, minimal: dict[str, Any]
) -> None:
    cluster.create(minimal)
    wait_for("a PodMonitor", lambda: names(cluster, "podmonitors") == ["pool"])
    made = get(cluster, "podmonitor", "pool")
    assert made["metadata"]["labels"]["release"] == "prometheus"
    assert made["spec"]["podMetricsEndpoints"][0]["honorLabels"] is True


def test_without_keda_the_condition_says_so(
    cluster: Any, control_plane: Any, minimal: dict[str, Any], tmp_path: Path
) -> None:
    control_plane.kubectl("delete", "crd", "scaledobjects.keda.sh")
    try:
        with RunningOperator(control_plane.kubeconfig, tmp_path / "log", "--namespaces", cluster.namespace) as running:
            wait_for("the operator answers", running.healthy)
            cluster.create({**minimal, "gpu": {"product": "NVIDIA-H200"}, "autoscaling": SCALING})
            wait_for("ScalerMissing", lambda: condition(cluster, "ScalingReady")[1] == "ScalerMissing")
            assert condition(cluster, "ScalingReady")[2] == "this cluster has no ScaledObject: install KEDA"
    finally:
        control_plane.kubectl("apply", "--server-side", "-f", str(foreign_crds.crd("scaledobjects")))
