"""What tests of the operator do to a cluster and read from it. They play the node: pods and Jobs end as they say."""

from __future__ import annotations

import json
import time
from typing import Any

from operator_process import RunningOperator
from waiting import wait_for

CHILDREN = {
    *("ServiceAccount/pool", "ServiceAccount/pool-router", "NetworkPolicy/pool", "NetworkPolicy/pool-router"),
    *("Service/pool", "Service/pool-router", "PodDisruptionBudget/pool", "PodDisruptionBudget/pool-router"),
    *("Deployment/pool", "Deployment/pool-router", "ConfigMap/pool-tenants"),
}
KINDS = "serviceaccounts,networkpolicies,services,poddisruptionbudgets,deployments,jobs,configmaps"
MANAGED = ("-l", "app.kubernetes.io/managed-by=stream2llm-operator")


def children(cluster: Any) -> set[str]:
    items = json.loads(cluster.kubectl("get", KINDS, *MANAGED, "-o", "json"))["items"]
    return {f"{item['kind']}/{item['metadata']['name']}" for item in items}


def get(cluster: Any, kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cluster.kubectl("get", kind, name, "-o", "json"))
    return found


def condition(cluster: Any, kind: str, name: str = "pool") -> tuple[str, str, str]:
    for each in get(cluster, "spf", name).get("status", {}).get("conditions", ()):
        if each["type"] == kind:
            return each["status"], each["reason"], each["message"]
    return "", "", ""


def make_ready(cluster: Any, name: str) -> None:
    """What the deployment controller and the kubelets would report."""
    wanted = get(cluster, "deployment", name)
    count = wanted["spec"]["replicas"]
    status = {"observedGeneration": wanted["metadata"]["generation"], "replicas": count}
    status |= {"readyReplicas": count, "updatedReplicas": count, "availableReplicas": count}
    cluster.kubectl(
        "patch", "deployment", name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status})
    )


def serving(cluster: Any, minimal: dict[str, Any], **changes: Any) -> None:
    cluster.create({**minimal, **changes})
    wait_for("all children", lambda: children(cluster) >= CHILDREN)
    for name in ("pool", "pool-router"):
        make_ready(cluster, name)
    wait_for("Ready", lambda: condition(cluster, "Ready")[0] == "True")


def settled(operator: RunningOperator) -> float:
    """The number of writes once none has been added for two seconds."""
    before, since = operator.metric("stream2llm_operator_writes_total"), time.monotonic()
    while time.monotonic() - since < 2:
        time.sleep(0.2)
        if (now := operator.metric("stream2llm_operator_writes_total")) != before:
            before, since = now, time.monotonic()
    return before


def jobs(cluster: Any) -> list[str]:
    items = json.loads(cluster.kubectl("get", "jobs", "-o", "json"))["items"]
    return [item["metadata"]["uid"] for item in items if "deletionTimestamp" not in item["metadata"]]


def finish(cluster: Any, job: dict[str, Any], message: str, *, failed: bool = False) -> None:
    """What the Job controller and a kubelet would do: a pod that has ended, then the Job's condition."""
    template = job["spec"]["template"]
    name = f"{job['metadata']['name']}-x"
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": template["metadata"]["labels"], "ownerReferences": [owner]},
        "spec": template["spec"],
    }
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(pod))
    ended = {"exitCode": 1 if failed else 0, "reason": "Error" if failed else "Completed", "message": message}
    container = {"name": "profile", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    container["state"] = {"terminated": ended}
    status = {"phase": "Failed" if failed else "Succeeded", "containerStatuses": [container]}
    cluster.kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    now = "2026-11-30T00:00:00Z"
    kinds = ("FailureTarget", "Failed") if failed else ("SuccessCriteriaMet", "Complete")
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds]
    status = {"conditions": conditions, "startTime": now, "uncountedTerminatedPods": {}}
    if not failed:
        status |= {"completionTime": now, "succeeded": 1}
    cluster.kubectl(
        *("patch", "job", job["metadata"]["name"], "--subresource=status", "--type=merge"),
        *("-p", json.dumps({"status": status})),
    )
