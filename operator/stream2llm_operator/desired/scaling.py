"""Who changes the number of pods: a KEDA ScaledObject, or a HorizontalPodAutoscaler on external metrics.

Both act on the resource's scale subresource, and both read series that the chart's recording rules make
(docs/autoscaling.md): loads as sums over pods, so that sum divided by target is the number of pods that carry it, and
one signal for preemptions that says hold or grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stream2llm_operator.api.crd import API_VERSION, KIND
from stream2llm_operator.api.spec import Autoscaling
from stream2llm_operator.desired.merging import merged
from stream2llm_operator.desired.naming import metadata
from stream2llm_operator.pool import Pool

SCALED_OBJECT, HPA = "ScaledObject", "HorizontalPodAutoscaler"
HPA_PREFIX = "keda-hpa-"
POLLING_S = 15
STEP_S = 240
"""At most one step up in so long: open streams stay where they are, so the pods that overflow go on overflowing until
the new ones, once mature, have taken their share of new streams."""
DOWN_WINDOW_S, DOWN_STEP_S = 600, 300
MOST_REPLICAS = 10_000


@dataclass(frozen=True, slots=True)
class Signal:
    """One series that decides. threshold: per pod where `per_pod`, else the value that means no change."""

    name: str
    series: str
    threshold: str
    per_pod: bool = True


def signals(pool: Pool, scaling: Autoscaling) -> list[Signal]:
    """What decides, the activation from zero first."""
    targets = scaling.targets
    return [
        Signal("open-streams", "stream2llm:pool_open_streams", str(pool.spec.streams.max_open_streams)),
        Signal("prefill-backlog", "stream2llm:pool_prefill_backlog_seconds", str(targets.prefill_backlog_seconds)),
        Signal("kv-cache", "stream2llm:pool_kv_cache_usage", f"{targets.kv_cache_usage_percent / 100:g}"),
        Signal("preemptions", "stream2llm:pool_preemption_signal", "1", per_pod=False),
    ]


def backend(pool: Pool) -> str | None:
    """The kind of the object that scales, None where people do."""
    scaling = pool.spec.autoscaling
    if scaling is None:
        return None
    return HPA if scaling.hpa is not None else SCALED_OBJECT


def scaler(pool: Pool) -> dict[str, Any] | None:
    """The manifest of the object that scales, None where people do."""
    scaling = pool.spec.autoscaling
    if scaling is None:
        return None
    return _hpa(pool, scaling) if scaling.hpa is not None else _scaled_object(pool, scaling)


def behavior(scaling: Autoscaling) -> dict[str, Any]:
    """`behavior` of autoscaling/v2: the user's laid over ours; in Preview nothing moves at all."""
    wanted: dict[str, Any] = merged(
        {
            "scaleUp": {
                "stabilizationWindowSeconds": 0,
                "selectPolicy": "Max",
                "policies": [
                    {"type": "Pods", "value": 1, "periodSeconds": STEP_S},
                    {"type": "Percent", "value": 50, "periodSeconds": STEP_S},
                ],
            },
            "scaleDown": {
                "stabilizationWindowSeconds": DOWN_WINDOW_S,
                "policies": [{"type": "Pods", "value": 1, "periodSeconds": DOWN_STEP_S}],
            },
        },
        dict(scaling.behavior),
    )
    if scaling.mode == "Preview":
        wanted = {side: {**wanted[side], "selectPolicy": "Disabled"} for side in ("scaleUp", "scaleDown")}
    return wanted


def _bounds(scaling: Autoscaling) -> tuple[int, int]:
    """Bounds act whatever the behavior says, so in Preview they must not bind."""
    return (1, MOST_REPLICAS) if scaling.mode == "Preview" else (scaling.min_replicas, scaling.max_replicas)


def _target(pool: Pool) -> dict[str, str]:
    return {"apiVersion": API_VERSION, "kind": KIND, "name": pool.name}


def _scaled_object(pool: Pool, scaling: Autoscaling) -> dict[str, Any]:
    minimum, maximum = _bounds(scaling)
    annotations = {}
    if scaling.mode == "Preview":
        annotations = {
            "autoscaling.keda.sh/paused-scale-in": "true",
            "autoscaling.keda.sh/paused-scale-out": "true",
        }
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": SCALED_OBJECT,
        "metadata": metadata(pool, pool.name, "autoscaler", annotations=annotations),
        "spec": {
            "scaleTargetRef": _target(pool),
            "minReplicaCount": minimum,
            "maxReplicaCount": maximum,
            "pollingInterval": POLLING_S,
            "cooldownPeriod": scaling.keda.cooldown_seconds if scaling.keda is not None else 300,
            "advanced": {
                "horizontalPodAutoscalerConfig": {
                    "name": f"{HPA_PREFIX}{pool.name}",
                    "behavior": behavior(scaling),
                }
            },
            "triggers": [_trigger(pool, scaling, signal) for signal in signals(pool, scaling)],
        },
    }


def _trigger(pool: Pool, scaling: Autoscaling, signal: Signal) -> dict[str, Any]:
    prometheus = scaling.prometheus
    namespace, _, name = pool.redis_pool.partition("/")
    trigger: dict[str, Any] = {
        "type": "prometheus",
        "name": signal.name,
        "metricType": "AverageValue" if signal.per_pod else "Value",
        "metadata": {
            "serverAddress": prometheus.server_address if prometheus is not None else "",
            "query": f'{signal.series}{{namespace="{namespace}",pool="{name}"}}',
            "threshold": signal.threshold,
            "activationThreshold": "0",
            # A series that is missing must hold the number of pods, not count as no load.
            "ignoreNullValues": "false",
        },
    }
    if prometheus is not None and prometheus.authentication_ref is not None:
        reference = prometheus.authentication_ref
        trigger["authenticationRef"] = {"name": reference.name, "kind": reference.kind}
    return trigger


def external_metric(prefix: str, signal: Signal) -> str:
    """A signal's name in external.metrics.k8s.io, where a colon is not allowed everywhere."""
    return prefix + signal.series.replace(":", "_")


def asked_metrics(pool: Pool) -> dict[str, str]:
    """The signals' names by what a HorizontalPodAutoscaler calls their metrics; KEDA numbers its triggers."""
    scaling = pool.spec.autoscaling
    if scaling is None:
        return {}
    asked = signals(pool, scaling)
    if scaling.hpa is not None:
        return {external_metric(scaling.hpa.metric_prefix, signal): signal.name for signal in asked}
    return {f"s{number}-prometheus": signal.name for number, signal in enumerate(asked)}


def _hpa(pool: Pool, scaling: Autoscaling) -> dict[str, Any]:
    minimum, maximum = _bounds(scaling)
    prefix = scaling.hpa.metric_prefix if scaling.hpa is not None else ""
    namespace, _, name = pool.redis_pool.partition("/")
    return {
        "apiVersion": "autoscaling/v2",
        "kind": HPA,
        "metadata": metadata(pool, pool.name, "autoscaler"),
        "spec": {
            "scaleTargetRef": _target(pool),
            "minReplicas": minimum,
            "maxReplicas": maximum,
            "behavior": behavior(scaling),
            "metrics": [
                {
                    "type": "External",
                    "external": {
                        "metric": {
                            "name": external_metric(prefix, signal),
                            "selector": {"matchLabels": {"namespace": namespace, "pool": name}},
                        },
                        "target": {"type": "AverageValue", "averageValue": signal.threshold}
                        if signal.per_pod
                        else {"type": "Value", "value": signal.threshold},
                    },
                }
                for signal in signals(pool, scaling)
            ],
        },
    }
