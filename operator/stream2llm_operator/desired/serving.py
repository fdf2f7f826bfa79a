"""The serving pods: their Deployment, Service, ServiceAccount and PodDisruptionBudget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stream2llm_operator.api.crd import GROUP
from stream2llm_operator.desired.engine import engine_arguments, model_argument, pod_spec
from stream2llm_operator.desired.merging import merged
from stream2llm_operator.desired.naming import POD_PORT, labels, metadata, pods_selector
from stream2llm_operator.desired.redis import redis_access
from stream2llm_operator.pool import OperatorSettings, Pool

PROFILE_PATH = "/etc/stream2llm/profile"
PROFILE_KEY = "profile.json"
DRAIN_MARGIN_S = 30
"""Between the end of draining and the kill: for the last replies, and for vLLM to stop."""
STARTUP_PERIOD_S = 10


@dataclass(frozen=True, slots=True)
class MountedProfile:
    """The cost profile that pods read. digest: of its text, so that another text rolls the pods."""

    config_map: str
    key: str
    digest: str


def deployment(
    pool: Pool, settings: OperatorSettings, gpu_product: str | None, profile: MountedProfile | None
) -> dict[str, Any]:
    """The Deployment of serving pods."""
    spec = pool.spec
    redis = redis_access(pool)
    preemption = effective_preemption(pool, profile)
    arguments = ["serve", "--model", model_argument(pool), *engine_arguments(pool)]
    arguments += ["--policy", spec.scheduling.policy, "--preemption", preemption]
    arguments += ["--max-wait-seconds", str(spec.scheduling.max_wait_seconds)]
    arguments += ["--max-open-streams", str(spec.streams.max_open_streams)]
    arguments += ["--idle-timeout-seconds", str(spec.streams.idle_timeout_seconds)]
    arguments += ["--drain-seconds", str(spec.drain.timeout_seconds), "--port", str(POD_PORT)]
    if preemption != "recompute" and spec.engine.swap is not None:
        arguments += ["--swap-space", spec.engine.swap.cpu]
    mounts, volumes = list(redis.mounts), list(redis.volumes)
    annotations = {}
    if profile is not None and preemption == "cost":
        arguments += ["--cost-profile", f"{PROFILE_PATH}/{profile.key}"]
        mounts.append({"name": "profile", "mountPath": PROFILE_PATH, "readOnly": True})
        volumes.append({"name": "profile", "configMap": {"name": profile.config_map}})
        annotations[f"{GROUP}/profile-digest"] = profile.digest
    if spec.restart.id:
        annotations[f"{GROUP}/restart-id"] = spec.restart.id
    container = {
        "name": "engine",
        "args": [*arguments, *redis.arguments],
        "env": [
            {"name": "STREAM2LLM_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "STREAM2LLM_ADVERTISE_URL", "value": f"http://$(POD_IP):{POD_PORT}"},
            *redis.env,
        ],
        "ports": [{"name": "http", "containerPort": POD_PORT, "protocol": "TCP"}],
        # So that the status of the resource can say why a pod ends again and again.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
        "startupProbe": _probe(
            "/health",
            periodSeconds=STARTUP_PERIOD_S,
            failureThreshold=-(-spec.startup.timeout_seconds // STARTUP_PERIOD_S),
        ),
        "readinessProbe": _probe("/ready", periodSeconds=5, failureThreshold=2),
        "livenessProbe": _probe("/health", periodSeconds=10, failureThreshold=6),
    }
    pod = pod_spec(pool, settings, container, gpu_product)
    pod["serviceAccountName"] = pool.name
    pod["terminationGracePeriodSeconds"] = spec.drain.timeout_seconds + DRAIN_MARGIN_S
    pod["volumes"] += volumes
    template = merged({"metadata": {"labels": {}, "annotations": annotations}, "spec": pod}, dict(spec.template))
    # After the merge: a selector that no longer matches would leave the Deployment without pods.
    template["metadata"]["labels"] = {
        **(template["metadata"].get("labels") or {}),
        **labels(pool, "pod"),
        **pods_selector(pool),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(pool, pool.name, "pod"),
        "spec": {
            "replicas": _replicas(pool),
            "revisionHistoryLimit": 3,
            # Old pods drain first where there is no spare GPU, and then the new one loads its model.
            "progressDeadlineSeconds": spec.startup.timeout_seconds + spec.drain.timeout_seconds + 2 * DRAIN_MARGIN_S,
            "selector": {"matchLabels": pods_selector(pool)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {
                    "maxSurge": spec.rollout.max_surge,
                    "maxUnavailable": spec.rollout.max_unavailable,
                },
            },
            "template": template,
        },
    }


def needs_profile(pool: Pool) -> bool:
    """Whether anything is decided by a cost profile: `cost` has a choice only where there is a pool to swap to."""
    return pool.spec.scheduling.preemption == "cost" and pool.spec.engine.swap is not None


def effective_preemption(pool: Pool, profile: MountedProfile | None) -> str:
    """What pods are told: without a pool to swap to, or until there is a profile to decide by, they recompute."""
    wanted = pool.spec.scheduling.preemption
    if pool.spec.engine.swap is None or (wanted == "cost" and profile is None):
        return "recompute"
    return wanted


def _replicas(pool: Pool) -> int:
    """The autoscaler writes `spec.replicas`; what is applied only keeps to its bounds."""
    scaling = pool.spec.autoscaling
    if scaling is None:
        return pool.spec.replicas
    return min(max(pool.spec.replicas, scaling.min_replicas), scaling.max_replicas)


def service(pool: Pool) -> dict[str, Any]:
    """Headless: routers reach each pod by its own address, and nothing else should balance over them."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(pool, pool.name, "pod"),
        "spec": {
            "clusterIP": "None",
            "selector": pods_selector(pool),
            "ports": [{"name": "http", "port": POD_PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def service_account(pool: Pool) -> dict[str, Any]:
    """Without any rights, and without a token."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(pool, pool.name, "pod"),
        "automountServiceAccountToken": False,
    }


def disruption_budget(pool: Pool) -> dict[str, Any]:
    """One pod at a time; one that is broken may always go."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(pool, pool.name, "pod"),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": pods_selector(pool)},
        },
    }


def _probe(path: str, **timing: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "http"}, "timeoutSeconds": 5, **timing}
