"""The bad day on a real node: each failure gives its documented reason, and goes away by itself with its cause."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import cpu_pool
import pytest
from images import reference
from local_volumes import read_only
from pools import Pool
from waiting import wait_for

pytestmark = pytest.mark.kubernetes

LIMIT_S = 240.0
VERSION = "0.32.0"


def recomputing(**changes: Any) -> dict[str, Any]:
    """A pool that needs no profile."""
    return cpu_pool.spec(scheduling={"preemption": "recompute"}, costProfile={"measure": {}}, **changes)


def idle(spec: dict[str, Any]) -> dict[str, Any]:
    """The same with a stand-in for the engine, which starts at once and is never ready."""
    spec["engine"] |= {"image": reference("idle"), "versionOverride": VERSION}
    return spec


def reason(pool: Pool, condition: str = "Ready") -> str:
    return pool.condition(condition)[1]


def wait_reason(pool: Pool, wanted: str, condition: str = "Ready") -> str:
    """Returns the message, once the condition has that reason."""
    wait_for(f"{condition} has reason {wanted}", lambda: reason(pool, condition) == wanted, LIMIT_S)
    return pool.condition(condition)[2]


def test_image_that_is_not_there(pool: Pool) -> None:
    spec = recomputing()
    spec["engine"] |= {"image": "localhost/nowhere:v0.32.0"}
    pool.apply(spec)
    assert "localhost/nowhere:v0.32.0" in wait_reason(pool, "ImagePullFailed")
    pool.apply(idle(spec))
    wait_reason(pool, "Starting")


def test_model_that_is_not_there(pool: Pool) -> None:
    spec = recomputing()
    spec["model"]["source"]["pvc"]["path"] = "no/such/model"
    pool.apply(spec)
    assert "/no/such/model: there is no such folder" in wait_reason(pool, "CrashLoop")
    del spec["model"]["source"]["pvc"]["path"]
    pool.apply(idle(spec))
    wait_reason(pool, "Starting")


def test_claim_that_is_not_there_and_then_is(pool: Pool, model: Path) -> None:
    spec = recomputing()
    spec["model"]["source"]["pvc"]["claimName"] = "late"
    pool.apply(idle(spec))
    assert "late" in wait_reason(pool, "Unschedulable")
    volumes = {"apiVersion": "v1", "kind": "List", "items": read_only(pool.namespace, "late", model)}
    pool.kubectl("apply", "-f", "-", stdin=json.dumps(volumes))
    try:
        wait_reason(pool, "Starting")
    finally:
        pool.cluster.kubectl("delete", "persistentvolume", f"{pool.namespace}-late", "--wait=false")


def test_redis_that_is_not_there_and_then_is(pool: Pool) -> None:
    spec = idle(recomputing())
    spec["streams"]["redis"]["url"] = "redis://late.stream2llm:6379"
    pool.apply(spec)
    assert "redis://late.stream2llm:6379" in wait_reason(pool, "RedisUnreachable", "RouterReady")
    # It explains more than that pods are starting.
    wait_reason(pool, "RedisUnreachable")
    system = ("--namespace", cpu_pool.SYSTEM_NAMESPACE)
    valkey = f"{cpu_pool.RELEASE}-valkey.{cpu_pool.SYSTEM_NAMESPACE}.svc.cluster.local"
    pool.cluster.kubectl(*system, "create", "service", "externalname", "late", "--external-name", valkey)
    try:
        wait_reason(pool, "AllReady", "RouterReady")
    finally:
        pool.cluster.kubectl(*system, "delete", "service", "late")


MISTAKES: list[tuple[str, dict[str, dict[str, Any]], str, str]] = [
    ("Stalled", {"scheduling": {"policy": "lru"}}, "UnknownPolicy", "'lru' is not one of"),
    ("Stalled", {"engine": {"extraArgs": ["--dtype=half"]}}, "ExtraArgConflict", "is set by model.dtype"),
    ("Stalled", {"streams": {"maxChunk": "2Mi"}}, "InvalidValue", "streams.maxChunk 2Mi"),
    ("Stalled", {"template": {"spec": {"nodeSelektor": {"a": "b"}}}}, "TemplateRejected", "nodeSelektor"),
    ("Profiled", {"engine": {"device": "CUDA"}}, "GPUProductUnknown", "set gpu.product"),
    ("Profiled", {"costProfile": {"configMapRef": {"name": "own", "key": "json"}}}, "ProfileInvalid", "schema: is"),
    ("Profiled", {"costProfile": {"configMapRef": {"name": "none", "key": "json"}}}, "ProfileNotFound", "none"),
    ("Profiled", {"costProfile": {"bundled": {}}}, "ProfileNotFound", "none of those that came with this operator"),
]


def test_mistakes_that_no_schema_sees(pool: Pool) -> None:
    """One after another on a pool that runs: each has its reason, and the next spec heals it."""
    pool.kubectl("create", "configmap", "own", "--from-literal=json={}")
    good = idle(cpu_pool.spec(scheduling={"preemption": "cost"}, costProfile={"measure": {"whileMissing": "Estimate"}}))
    good["costProfile"]["measure"]["job"] = {"template": {"spec": {"nodeSelector": {"no": "node"}}}}
    pool.apply(good)
    wait_reason(pool, "Starting")
    for condition, change, wanted, words in MISTAKES:
        spec = copy.deepcopy(good)
        for field, value in change.items():
            spec[field] = value if field == "costProfile" else {**spec[field], **value}
        pool.apply(spec)
        assert words in wait_reason(pool, wanted, condition)
        pool.apply(good)
        wait_reason(pool, "AsWanted", "Stalled")
        wait_reason(pool, "Unschedulable", "Profiled")


def test_job_that_is_really_killed_for_its_memory(pool: Pool) -> None:
    spec = cpu_pool.spec()
    profile = {"name": "profile", "resources": {"limits": {"memory": "96Mi"}}}
    spec["costProfile"]["measure"]["job"]["template"] = {"spec": {"containers": [profile]}}
    pool.apply(spec)
    wait_reason(pool, "OutOfMemory", "Profiled")
    # Pods wait for the profile, so it is what stands in the way.
    assert reason(pool) == "OutOfMemory"
    profile["resources"]["limits"]["memory"] = "6Gi"
    pool.apply(spec)
    wait_reason(pool, "Profiling", "Profiled")


def test_job_past_its_deadline(pool: Pool) -> None:
    spec = idle(cpu_pool.spec())
    spec["costProfile"]["measure"]["job"]["timeoutSeconds"] = 60
    pool.apply(spec)
    wait_reason(pool, "ProfilingTimedOut", "Profiled")


def test_no_node_with_such_gpus_then_one_then_all_taken(pool: Pool) -> None:
    product = "NVIDIA-H200"
    spec = idle(recomputing())
    spec["engine"] = {"image": reference("idle"), "versionOverride": VERSION}
    spec["gpu"] = {"product": product}
    pool.apply(spec)
    assert product in wait_reason(pool, "NoGPUNode")
    pool.cluster.offer_gpus(1, product)
    try:
        wait_reason(pool, "Starting")
        pool.kubectl("scale", "spf/tiny", "--replicas=2")
        assert "Insufficient nvidia.com/gpu" in wait_reason(pool, "WaitingForGPU")
        pool.cluster.offer_gpus(2, product)
        wait_reason(pool, "Starting")
    finally:
        pool.cluster.offer_gpus(0, product)
