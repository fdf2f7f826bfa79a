"""The bad day on a real node: each failure gives its documented reason, and goes away by itself with its cause."""

from __future__ import annotations

from typing import Any

import cpu_pool
import pytest
from images import reference
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
    assert "no/such/model" in wait_reason(pool, "CrashLoop")


def test_claim_that_is_not_there(pool: Pool) -> None:
    spec = recomputing()
    spec["model"]["source"]["pvc"]["claimName"] = "nobody-has-it"
    pool.apply(idle(spec))
    assert "nobody-has-it" in wait_reason(pool, "Unschedulable")


def test_redis_that_is_not_there(pool: Pool) -> None:
    spec = recomputing()
    spec["streams"]["redis"]["url"] = "redis://nobody.stream2llm:6379"
    pool.apply(spec)
    wait_reason(pool, "NotReady", "RouterReady")
    assert "redis://nobody.stream2llm:6379" in wait_reason(pool, "CrashLoop", "PodsReady")
    # And recovers by itself.
    pool.cluster.kubectl(
        *("--namespace", cpu_pool.SYSTEM_NAMESPACE, "create", "service", "externalname", "nobody"),
        *("--external-name", f"{cpu_pool.RELEASE}-valkey.{cpu_pool.SYSTEM_NAMESPACE}.svc.cluster.local"),
    )
    try:
        wait_reason(pool, "AllReady", "RouterReady")
    finally:
        pool.cluster.kubectl("--namespace", cpu_pool.SYSTEM_NAMESPACE, "delete", "service", "nobody")


def test_job_that_is_really_killed_for_its_memory(pool: Pool) -> None:
    spec = cpu_pool.spec()
    profile = {"name": "profile", "resources": {"limits": {"memory": "96Mi"}}}
    spec["costProfile"]["measure"]["job"]["template"] = {"spec": {"containers": [profile]}}
    pool.apply(spec)
    wait_reason(pool, "OutOfMemory", "Profiled")
    assert reason(pool) == "OutOfMemory"


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
