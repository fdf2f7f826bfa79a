"""The chart over its life: tested, upgraded, rolled back, its operator killed again and again, its node drained."""

from __future__ import annotations

import json
import random
from typing import Any

import cpu_pool
import pytest
from chart import CHART, helm
from images import reference
from node import NODE, RealCluster
from pools import NAME, Pool
from waiting import wait_for

pytestmark = pytest.mark.kubernetes

ROUNDS = 50
OPERATOR = ("-l", "app.kubernetes.io/component=operator")


def idle_spec(**changes: Any) -> dict[str, Any]:
    """A pool whose pods start at once and do nothing: what is tested is around them."""
    spec = cpu_pool.spec(scheduling={"preemption": "recompute"}, costProfile={"measure": {}}, **changes)
    spec["engine"] |= {"image": reference("idle"), "versionOverride": "0.32.0"}
    return spec


def release(cluster: RealCluster, *arguments: str, values: dict[str, Any] | None = None) -> str:
    where = ("--namespace", cpu_pool.SYSTEM_NAMESPACE)
    return helm(cluster.kubeconfig, *arguments, *where, "--timeout", "240s", values=values)


def in_system(cluster: RealCluster, *arguments: str) -> str:
    return cluster.kubectl("--namespace", cpu_pool.SYSTEM_NAMESPACE, *arguments)


def holder(cluster: RealCluster) -> str:
    """The operator's pod that is at work; empty if none is."""
    identity = in_system(cluster, "get", "lease", "stream2llm-operator", "-o", "jsonpath={.spec.holderIdentity}")
    return identity.rpartition("-")[0]


def test_helm_test_upgrade_and_rollback(pool: Pool) -> None:
    cluster = pool.cluster
    pool.apply(idle_spec())
    wait_for("the pool's Deployment", lambda: f"Deployment/{NAME}" in pool.objects(), 120)
    uid = pool.get("deployment")["metadata"]["uid"]
    assert "Succeeded" in release(cluster, "test", cpu_pool.RELEASE)

    values = cpu_pool.chart_values()
    values["operator"] = {"replicas": 2}
    release(cluster, "upgrade", cpu_pool.RELEASE, str(CHART), "--wait", values=values)
    assert len(in_system(cluster, "get", "pods", *OPERATOR, "-o", "name").split()) == 2
    # The one at work dies without a word, and the other one takes over.
    wait_for("somebody holds the Lease", lambda: holder(cluster) != "", 120)
    before = holder(cluster)
    in_system(cluster, "delete", "pod", before, "--grace-period=0", "--force")
    wait_for("the other one holds the Lease", lambda: holder(cluster) not in ("", before), 120)
    pool.kubectl("scale", f"spf/{NAME}", "--replicas=3")
    wait_for("three pods are asked for", lambda: pool.get("deployment")["spec"]["replicas"] == 3, 120)
    release(cluster, "rollback", cpu_pool.RELEASE, "1", "--wait")
    wait_for(
        "one operator is left",
        lambda: len(in_system(cluster, "get", "pods", *OPERATOR, "-o", "name").split()) == 1,
        120,
    )
    # The pool has not noticed, and the operator works.
    assert pool.get("deployment")["metadata"]["uid"] == uid
    pool.kubectl("scale", f"spf/{NAME}", "--replicas=2")
    wait_for("two pods are asked for", lambda: pool.get("deployment")["spec"]["replicas"] == 2, 120)


def test_operator_killed_in_many_rounds(pool: Pool) -> None:
    choose = random.Random(6)
    names, wanted = ("one", "two", "three"), dict[str, int]()
    for _ in range(ROUNDS):
        name = choose.choice(names)
        if name in wanted and choose.random() < 0.3:
            pool.kubectl("delete", "spf", name, "--wait=false")
            del wanted[name]
        else:
            wanted[name] = choose.randrange(3)
            spec = idle_spec(replicas=wanted[name])
            body = json.dumps(cpu_pool.resource(name, spec, pool.namespace))
            pool.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=body)
        if choose.random() < 0.3:
            kill = ("--grace-period=0", "--force", "--wait=false", "--ignore-not-found")
            in_system(pool.cluster, "delete", "pods", *OPERATOR, *kill)

    def deployments() -> dict[str, int]:
        found = json.loads(pool.kubectl("get", "deployments", "-o", "json"))["items"]
        return {item["metadata"]["name"]: item["spec"]["replicas"] for item in found}

    expected = {**wanted, **{f"{name}-router": 1 for name in wanted}}
    wait_for("desired is actual", lambda: deployments() == expected, 240)
    services = {f"Service/{name}{suffix}" for name in wanted for suffix in ("", "-router")}
    wait_for("no orphan", lambda: {each for each in pool.objects() if each.startswith("Service/")} == services, 240)
    pool.kubectl("delete", "spf", "--all", "--timeout=60s")
    wait_for("nothing is left", lambda: pool.objects() == [], 240)


def test_control_plane_restarts_in_the_middle(pool: Pool) -> None:
    plane = pool.cluster.plane
    pool.apply(idle_spec())
    for components in (("kube-apiserver",), ("kube-apiserver", "etcd")):
        for name in components:
            plane.stop_one(name, hard=True)
        for name in reversed(components):
            plane.start_one(name)
        plane.wait_ready()
        replicas = len(components) + 1
        pool.kubectl("patch", "spf", NAME, "--type=merge", "-p", json.dumps({"spec": {"replicas": replicas}}))
        running = ["Running"] * replicas
        wait_for(
            "the pods run", lambda running=running: [pod["status"]["phase"] for pod in pool.pods()] == running, 240
        )
    pool.kubectl("delete", "service", NAME)
    wait_for("what was deleted is back", lambda: f"Service/{NAME}" in pool.objects(), 120)
    pool.kubectl("delete", "spf", NAME, "--timeout=60s")
    wait_for("nothing is left", lambda: pool.objects() == [], 240)


def test_resource_goes_without_an_operator(pool: Pool) -> None:
    pool.apply(idle_spec())
    wait_for("the pool's Deployment", lambda: f"Deployment/{NAME}" in pool.objects(), 120)
    in_system(pool.cluster, "scale", "deployment", cpu_pool.RELEASE, "--replicas=0")
    try:
        in_system(pool.cluster, "wait", "--for=delete", "pods", *OPERATOR, "--timeout=120s")
        pool.kubectl("delete", "spf", NAME, "--timeout=60s")
        wait_for("nothing is left", lambda: pool.objects() == [], 240)
    finally:
        in_system(pool.cluster, "scale", "deployment", cpu_pool.RELEASE, "--replicas=1")
        in_system(pool.cluster, "rollout", "status", "deployment", cpu_pool.RELEASE, "--timeout=180s")


def test_node_drained_and_back(pool: Pool) -> None:
    pool.apply(idle_spec(replicas=2))
    wait_for("two pods run", lambda: len([pod for pod in pool.pods() if pod["status"]["phase"] == "Running"]) == 2, 180)
    before = {pod["metadata"]["uid"] for pod in pool.pods()}
    # Force: the pod of a Job or of a test has nobody who makes it again.
    drain = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=240s")
    pool.cluster.kubectl("drain", NODE, *drain)
    try:
        assert before.isdisjoint(pod["metadata"]["uid"] for pod in pool.pods())
    finally:
        pool.cluster.kubectl("uncordon", NODE)
    in_system(pool.cluster, "rollout", "status", "deployment", cpu_pool.RELEASE, "--timeout=180s")
    in_system(pool.cluster, "rollout", "status", "statefulset", f"{cpu_pool.RELEASE}-valkey", "--timeout=180s")
    wait_for("two pods run", lambda: len([pod for pod in pool.pods() if pod["status"]["phase"] == "Running"]) == 2, 180)
    wait_for("the router is ready", lambda: pool.condition("RouterReady")[0] == "True", 180)
