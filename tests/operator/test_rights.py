"""The operator under the chart's ServiceAccount: nothing that it does is forbidden, and nothing else is granted."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import foreign_crds
import programs
import pytest
import yaml
from acting import CHILDREN, children, condition, finish, jobs
from operator_process import RunningOperator
from profiles import profile_text
from waiting import wait_for

pytestmark = pytest.mark.kubernetes

CHART = Path(__file__).resolve().parent.parent.parent / "helm" / "stream2llm"
RIGHTS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
Right = tuple[str, str, str]
"""API group, resource with subresource, verb."""
NEEDS_ROUTERS: set[Right] = {("", "pods", "patch")}
"""Used only where routers tell which pods are idle: tests/cluster/test_scaling_down.py."""


def chart_rights(namespace: str, *arguments: str) -> list[dict[str, Any]]:
    helm = str(programs.ensure("helm")["helm"])
    command = [
        helm,
        "template",
        "s2l",
        str(CHART),
        "--namespace",
        namespace,
        "--set",
        "aggregatedRoles=false",
        *arguments,
    ]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [manifest for manifest in yaml.safe_load_all(text) if manifest and manifest["kind"] in RIGHTS]


def granted(manifests: list[dict[str, Any]]) -> set[Right]:
    return {
        (group, resource, verb)
        for manifest in manifests
        for rule in manifest.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def requests(audit: Path, user: str) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in audit.read_text().splitlines() if user in line]
    return [event for event in events if event["user"]["username"] == user and "objectRef" in event]


def scalers(cluster: Any) -> list[str]:
    """The kinds of which there are objects that scale."""
    kinds = ("scaledobjects", "hpa")
    return [kind for kind in kinds if json.loads(cluster.kubectl("get", kind, "-o", "json"))["items"]]


def used(events: list[dict[str, Any]]) -> set[Right]:
    found = set()
    for event in events:
        what = event["objectRef"]
        resource = what["resource"] + (f"/{what['subresource']}" if "subresource" in what else "")
        group = what.get("apiGroup", "")
        found.add((group, resource, event["verb"]))
        if event["verb"] == "patch" and event["responseStatus"]["code"] == 201:
            found.add((group, resource, "create"))
    return found


@pytest.mark.parametrize("confined", [False, True], ids=["all namespaces", "one namespace"])
def test_rights_are_exactly_what_is_used(
    cluster: Any, control_plane: Any, minimal: dict[str, Any], tmp_path: Path, confined: bool
) -> None:
    for plural in ("scaledobjects", "podmonitors"):
        control_plane.kubectl("apply", "--server-side", "-f", str(foreign_crds.crd(plural)))
    arguments = ("--set", "monitoring.podMonitor.enabled=true")
    if confined:
        arguments += ("--set", f"operator.namespaces={{{cluster.namespace}}}")
    manifests = chart_rights(cluster.namespace, *arguments)
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests))
    token = cluster.kubectl("create", "token", "s2l-stream2llm").strip()
    kubeconfig = control_plane.write_kubeconfig(f"operator-{cluster.namespace}", token)
    user = f"system:serviceaccount:{cluster.namespace}:s2l-stream2llm"

    def seen() -> list[dict[str, Any]]:
        return requests(control_plane.work / "audit.log", user)

    options: tuple[str, ...] = ("--lease-namespace", cluster.namespace, "--pod-monitor-interval", "15s")
    if confined:
        options += ("--namespaces", cluster.namespace)
    with RunningOperator(kubeconfig, tmp_path / "log", *options) as running:
        wait_for("the operator answers", running.healthy)
        wanted = {**minimal, "gpu": {"product": "NVIDIA-H200"}, "engine": {"swap": {"cpu": "64Gi"}}}
        cluster.create(wanted)
        wait_for("all children", lambda: children(cluster) >= CHILDREN and jobs(cluster))
        (job,) = json.loads(cluster.kubectl("get", "jobs", "-o", "json"))["items"]
        finish(cluster, job, profile_text())
        wait_for("the profile is used", lambda: condition(cluster, "Profiled")[1] == "Measured")
        wait_for("the Job is cleared away", lambda: not jobs(cluster))
        provided = {**wanted, "costProfile": {"configMapRef": {"name": "missing", "key": "k"}}}
        cluster.create(provided, "provided")
        wait_for("ProfileNotFound", lambda: condition(cluster, "Profiled", "provided")[1] == "ProfileNotFound")
        prometheus = {"serverAddress": "http://prometheus:9090"}
        for scaling in ({"maxReplicas": 4, "prometheus": prometheus}, {"maxReplicas": 5, "hpa": {}}, None):
            # Through another kind and back, so that each is made and removed once.
            cluster.patch({"spec": {"autoscaling": scaling}}, "provided")
            kind = None if scaling is None else "hpa" if "hpa" in scaling else "scaledobjects"
            wait_for(f"scaled by {kind}", lambda kind=kind: scalers(cluster) == ([] if kind is None else [kind]))
        wait_for("the Lease is renewed", lambda: "update" in {verb for _, _, verb in used(seen())})
    events = seen()
    assert {(event["verb"], event["requestURI"]) for event in events if event["responseStatus"]["code"] == 403} == set()
    assert used(events) == granted(manifests) - NEEDS_ROUTERS
