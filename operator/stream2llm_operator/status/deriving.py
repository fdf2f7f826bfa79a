"""The status of a resource from what is observed. Pure: time comes in, and the same state gives the same status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stream2llm.keys import PoolKeys
from stream2llm_operator.desired.naming import PODS_LABEL, ROUTER_PORT, router_name
from stream2llm_operator.pool import Pool
from stream2llm_operator.status.diagnosing import Finding, GPUs, diagnose
from stream2llm_operator.status.reasons import (
    CONDITIONS,
    PODS_READY,
    PROFILED,
    READY,
    ROUTER_READY,
    SCALING_READY,
    STALLED,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one condition says. holds: None for Unknown."""

    holds: bool | None
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """A Deployment, None where there is none yet, and its pods."""

    deployment: Mapping[str, Any] | None
    pods: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ProfileInUse:
    """The profile that the pods read."""

    config_map: str
    source: str
    measured_at: str
    rerun_id: str = ""


def workload_verdict(workload: Workload, *, gpus: GPUs, all_ready: bool) -> Verdict:
    """Whether pods are ready. all_ready: every one that is asked for, in its newest form; else one is enough."""
    deployment = workload.deployment
    if deployment is None:
        return Verdict(None, "Pending")
    status, wanted = deployment.get("status", {}), deployment["spec"].get("replicas", 1)
    if wanted == 0:
        return Verdict(True, "ScaledToZero")
    ready = status.get("readyReplicas", 0)
    current = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    settled = current and status.get("updatedReplicas", 0) >= wanted and status.get("replicas", 0) <= wanted
    count = f"{ready} of {wanted} ready"
    if ready >= wanted and settled:
        return Verdict(True, "AllReady", count)
    trouble = diagnose(workload.pods, gpus)
    if ready > 0 and not all_ready:
        return Verdict(True, "AllReady", f"{count}{f'; {trouble.message}' if trouble else ''}")
    if trouble is not None:
        return Verdict(False, trouble.reason, f"{count}; {trouble.message}")
    if _deadline_exceeded(status):
        return Verdict(False, "StartupTimedOut", count)
    there = status.get("replicas", 0)
    if there > 0 and (not current or status.get("updatedReplicas", 0) < min(wanted, there)):
        return Verdict(False, "RollingOut", count)
    if any(_runs(pod) for pod in workload.pods):
        return Verdict(False, "NotReady" if not all_ready else "Starting", count)
    return Verdict(False, "Starting", count)


def _deadline_exceeded(status: Mapping[str, Any]) -> bool:
    return any(
        condition["type"] == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded"
        for condition in status.get("conditions") or ()
    )


def _runs(pod: Mapping[str, Any]) -> bool:
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    return any("running" in (container.get("state") or {}) for container in statuses)


def verdicts(
    *,
    stalled: Finding | None,
    profiled: Verdict,
    pods: Workload,
    routers: Workload,
    scaling: Verdict,
    waiting_for_profile: bool,
    gpus: GPUs,
    redis: Finding | None = None,
) -> dict[str, Verdict]:
    """All conditions by name. What stands in the way most becomes Ready's reason.

    redis: what routers say of it, where none of them is ready.
    """
    result = {
        PROFILED: profiled,
        PODS_READY: workload_verdict(pods, gpus=gpus, all_ready=True),
        ROUTER_READY: workload_verdict(routers, gpus=GPUs(), all_ready=False),
        SCALING_READY: scaling,
        STALLED: Verdict(False, "AsWanted") if stalled is None else Verdict(True, stalled.reason, stalled.message),
    }
    if redis is not None and result[ROUTER_READY].holds is False:
        result[ROUTER_READY] = Verdict(False, redis.reason, redis.message)
    if waiting_for_profile and pods.deployment is None:
        result[PODS_READY] = Verdict(False, "WaitingForProfile", profiled.message)
    result[READY] = _ready(result, waiting_for_profile)
    return result


def _ready(found: Mapping[str, Verdict], waiting_for_profile: bool) -> Verdict:
    if found[STALLED].holds:
        return Verdict(False, found[STALLED].reason, found[STALLED].message)
    if waiting_for_profile and found[PODS_READY].reason == "WaitingForProfile":
        return Verdict(False, found[PROFILED].reason, found[PROFILED].message)
    # Pods cannot start without Redis either, and then say less of it.
    in_order = (PODS_READY, ROUTER_READY)
    for name in reversed(in_order) if found[ROUTER_READY].reason == "RedisUnreachable" else in_order:
        if not found[name].holds:
            return Verdict(found[name].holds, found[name].reason, found[name].message)
    return Verdict(True, "Serving", found[PODS_READY].message)


def status(
    pool: Pool,
    previous: Mapping[str, Any],
    found: Mapping[str, Verdict],
    *,
    now: str,
    pods: Workload,
    engine_version: str,
    gpu_product: str | None,
    profile: ProfileInUse | None,
    autoscaling: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The whole status. now: RFC 3339, used only where a condition changes.

    Counts are the Deployment's. Fields that nobody knows are left out.
    """
    host = f"{router_name(pool)}.{pool.namespace}.svc"
    url = f"http://{host}:{ROUTER_PORT}"
    keys = PoolKeys(pool.redis_pool)
    counts = pods.deployment.get("status", {}) if pods.deployment is not None else {}
    result: dict[str, Any] = {
        "observedGeneration": pool.generation,
        "replicas": counts.get("replicas", 0),
        "readyReplicas": counts.get("readyReplicas", 0),
        "selector": f"{PODS_LABEL}={pool.name}",
        "url": url,
        "ingressKeyPrefix": keys.prefix,
        "addresses": [
            {"name": "http", "url": f"{url}/v1/streams"},
            {"name": "openai", "url": f"{url}/v1"},
            {"name": "redis", "url": pool.spec.streams.redis.url},
        ],
        "conditions": conditions(pool.generation, previous.get("conditions") or (), found, now),
    }
    if engine_version:
        result["engineVersion"] = engine_version
    if gpu_product:
        result["gpuProduct"] = gpu_product
    if autoscaling is not None:
        result["autoscaling"] = dict(autoscaling)
    if profile is not None:
        result["costProfile"] = {
            "configMap": profile.config_map,
            "source": profile.source,
            "measuredAt": profile.measured_at,
            "rerunId": profile.rerun_id,
        }
    return result


def conditions(
    generation: int, previous: Iterable[Mapping[str, Any]], found: Mapping[str, Verdict], now: str
) -> list[dict[str, Any]]:
    """As Kubernetes keeps them: the time of a transition moves only when the status does."""
    before = {condition["type"]: condition for condition in previous}
    result = []
    for name in CONDITIONS:
        verdict = found.get(name, Verdict(None, "Pending"))
        value = {True: "True", False: "False", None: "Unknown"}[verdict.holds]
        old = before.get(name)
        since = old["lastTransitionTime"] if old is not None and old["status"] == value else now
        result.append(
            {
                "type": name,
                "status": value,
                "reason": verdict.reason,
                "message": verdict.message,
                "lastTransitionTime": since,
                "observedGeneration": generation,
            }
        )
    return result
