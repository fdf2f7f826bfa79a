"""The objects that scale: what they read, between which bounds, and how fast."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
from scenarios import MINIMAL, SETTINGS, pool

from stream2llm_operator.desired.routing import deployment as routers
from stream2llm_operator.desired.scaling import backend, scaler

PROMETHEUS = {"serverAddress": "http://prometheus.monitoring:9090"}


def made(name: str = "llama", streams: dict[str, Any] | None = None, **scaling: Any) -> dict[str, Any]:
    spec = {**MINIMAL, "autoscaling": {"maxReplicas": 8, "prometheus": PROMETHEUS, **scaling}}
    if streams is not None:
        spec["streams"] = {**MINIMAL["streams"], **streams}
    manifest = scaler(pool(spec, name))
    assert manifest is not None
    return manifest


def test_people_scale_where_nothing_else_is_said() -> None:
    assert scaler(pool(MINIMAL)) is None
    assert backend(pool(MINIMAL)) is None


def test_a_scaled_object_reads_four_signals_that_hold_when_they_are_missing() -> None:
    spec = made(minReplicas=0, keda={"cooldownSeconds": 60}, targets={"kvCacheUsagePercent": 75})["spec"]
    assert spec["scaleTargetRef"] == {
        "apiVersion": "stream2llm.io/v1alpha1",
        "kind": "StreamingPrefill",
        "name": "llama",
    }
    assert (spec["minReplicaCount"], spec["maxReplicaCount"], spec["cooldownPeriod"]) == (0, 8, 60)
    read = [
        (trigger["name"], trigger["metricType"], trigger["metadata"]["query"], trigger["metadata"]["threshold"])
        for trigger in spec["triggers"]
    ]
    of = '{namespace="search",pool="llama"}'
    assert read == [
        ("open-streams", "AverageValue", f"stream2llm:pool_open_streams{of}", "128"),
        ("prefill-backlog", "AverageValue", f"stream2llm:pool_prefill_backlog_seconds{of}", "5"),
        ("kv-cache", "AverageValue", f"stream2llm:pool_kv_cache_usage{of}", "0.75"),
        ("preemptions", "Value", f"stream2llm:pool_preemption_signal{of}", "1"),
    ]
    for trigger in spec["triggers"]:
        assert trigger["type"] == "prometheus"
        assert trigger["metadata"]["serverAddress"] == PROMETHEUS["serverAddress"]
        assert trigger["metadata"]["ignoreNullValues"] == "false"
        assert "authenticationRef" not in trigger
    assert "fallback" not in spec


def test_a_pool_of_another_name_is_found_by_that_name() -> None:
    triggers = made(streams={"poolName": "team/shared"})["spec"]["triggers"]
    assert triggers[0]["metadata"]["query"] == 'stream2llm:pool_open_streams{namespace="team",pool="shared"}'


def test_keda_logs_in_by_its_own_reference() -> None:
    login = {"name": "prometheus-login", "kind": "ClusterTriggerAuthentication"}
    for trigger in made(prometheus={**PROMETHEUS, "authenticationRef": login})["spec"]["triggers"]:
        assert trigger["authenticationRef"] == login


def test_up_by_half_in_four_minutes_and_down_by_one_in_five_after_ten() -> None:
    behavior = made()["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleUp"]["policies"] == [
        {"type": "Pods", "value": 1, "periodSeconds": 240},
        {"type": "Percent", "value": 50, "periodSeconds": 240},
    ]
    assert behavior["scaleDown"] == {
        "stabilizationWindowSeconds": 600,
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 300}],
    }


def test_the_users_behavior_is_laid_over() -> None:
    mine = {"scaleDown": {"stabilizationWindowSeconds": 60}}
    behavior = made(behavior=mine)["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 60
    assert behavior["scaleDown"]["policies"][0]["value"] == 1


@pytest.mark.parametrize("kind", ["keda", "hpa"])
def test_preview_moves_nothing(kind: str) -> None:
    manifest = made(mode="Preview", minReplicas=2, **{kind: {}})
    spec = manifest["spec"]
    if kind == "keda":
        assert manifest["metadata"]["annotations"] == {
            "autoscaling.keda.sh/paused-scale-in": "true",
            "autoscaling.keda.sh/paused-scale-out": "true",
        }
        bounds = (spec["minReplicaCount"], spec["maxReplicaCount"])
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    else:
        bounds, behavior = (spec["minReplicas"], spec["maxReplicas"]), spec["behavior"]
    # A bound would move the pool whatever the behavior says.
    assert bounds == (1, 10_000)
    assert {side: behavior[side]["selectPolicy"] for side in behavior} == {
        "scaleUp": "Disabled",
        "scaleDown": "Disabled",
    }


@pytest.mark.parametrize("version", ["1.34", "1.37"])
def test_an_autoscaler_of_external_metrics(version: str) -> None:
    manifest = made(hpa={"metricPrefix": "prom_"}, minReplicas=2)
    kubernetes_validate.validate(manifest, version, strict=True)
    metrics = [metric["external"] for metric in manifest["spec"]["metrics"]]
    assert [metric["metric"]["name"] for metric in metrics] == [
        "prom_stream2llm_pool_open_streams",
        "prom_stream2llm_pool_prefill_backlog_seconds",
        "prom_stream2llm_pool_kv_cache_usage",
        "prom_stream2llm_pool_preemption_signal",
    ]
    assert {str(metric["metric"]["selector"]) for metric in metrics} == {
        str({"matchLabels": {"namespace": "search", "pool": "llama"}})
    }
    assert [metric["target"] for metric in metrics][2:] == [
        {"type": "AverageValue", "averageValue": "0.8"},
        {"type": "Value", "value": "1"},
    ]


def test_the_open_that_wakes_a_pool_from_zero_may_wait_for_its_pod() -> None:
    def arguments(**scaling: Any) -> list[str]:
        spec = {**MINIMAL, "startup": {"timeoutSeconds": 900}}
        spec["autoscaling"] = {"maxReplicas": 8, "prometheus": PROMETHEUS, **scaling}
        found: list[str] = routers(pool(spec), SETTINGS)["spec"]["template"]["spec"]["containers"][0]["args"]
        return found

    woken = arguments(minReplicas=0)
    assert woken[woken.index("--start-wait-seconds") + 1] == "900"
    # Else an open that finds no pod fails early, as with one that has no room.
    assert "--start-wait-seconds" not in arguments(minReplicas=1)
