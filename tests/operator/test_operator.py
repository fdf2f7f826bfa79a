"""The operator against a real API server. What a node would do to pods and Jobs is written by the test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from acting import CHILDREN, MANAGED, children, condition, finish, get, jobs, make_ready, serving, settled
from operator_process import RunningOperator
from profiles import profile_text
from waiting import wait_for

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def operator(control_plane: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningOperator]:
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    with RunningOperator(control_plane.kubeconfig, log) as running:
        wait_for("the operator answers", running.healthy)
        yield running
        assert "Traceback" not in log.read_text()


def test_from_created_to_ready(cluster: Any, operator: RunningOperator, minimal: dict[str, Any]) -> None:
    cluster.create(minimal)
    wait_for("all children", lambda: children(cluster) == CHILDREN)
    assert condition(cluster, "Ready")[1] in ("", "Pending", "Starting", "RollingOut")
    make_ready(cluster, "pool-router")
    make_ready(cluster, "pool")
    cluster.kubectl("wait", "--for=condition=Ready", "--timeout=30s", "spf/pool")
    stored = get(cluster, "spf", "pool")
    assert stored["status"]["readyReplicas"] == 1
    assert stored["status"]["observedGeneration"] == stored["metadata"]["generation"]
    assert stored["status"]["ingressKeyPrefix"] == f"s2l:{{{cluster.namespace}/pool}}"
    assert "finalizers" not in stored["metadata"]
    assert "annotations" not in stored["metadata"]
    events = json.loads(cluster.kubectl("get", "events", "-o", "json"))["items"]
    told = {(event["type"], event["reason"]) for event in events}
    assert ("Normal", "Serving") in told
    # Starting is nothing to warn of, and nothing was replaced.
    assert {kind for kind, _ in told} == {"Normal"}
    assert "RollingOut" not in {reason for _, reason in told}


def test_nothing_is_written_while_everything_is_as_it_should_be(
    cluster: Any, operator: RunningOperator, minimal: dict[str, Any]
) -> None:
    serving(cluster, minimal)
    before = settled(operator)
    # Passes happen, since a child's label is touched and put back; they have nothing to write but the repair.
    cluster.kubectl("annotate", "spf", "pool", "somebody=elses")
    assert settled(operator) == before


def test_drift_is_repaired(cluster: Any, operator: RunningOperator, minimal: dict[str, Any]) -> None:
    serving(cluster, minimal)
    cluster.kubectl("scale", "deployment", "pool", "--replicas=7")
    wait_for("replicas are put back", lambda: get(cluster, "deployment", "pool")["spec"]["replicas"] == 1)
    cluster.kubectl("delete", "service", "pool-router", "--wait=false")
    wait_for("the Service is back", lambda: "Service/pool-router" in children(cluster))
    cluster.kubectl("label", "networkpolicy", "pool", "stream2llm.io/pool-", "--overwrite")
    wait_for(
        "the label is back",
        lambda: get(cluster, "networkpolicy", "pool")["metadata"]["labels"].get("stream2llm.io/pool") == "pool",
    )


def test_fields_of_others_are_left_alone(cluster: Any, operator: RunningOperator, minimal: dict[str, Any]) -> None:
    serving(cluster, minimal)
    cluster.kubectl("annotate", "deployment", "pool", "team=search")
    cluster.patch({"spec": {"replicas": 2}})
    wait_for("two replicas", lambda: get(cluster, "deployment", "pool")["spec"]["replicas"] == 2)
    assert get(cluster, "deployment", "pool")["metadata"]["annotations"]["team"] == "search"


def test_kubectl_scale_reaches_the_pods(cluster: Any, operator: RunningOperator, minimal: dict[str, Any]) -> None:
    serving(cluster, minimal)
    cluster.kubectl("scale", "spf/pool", "--replicas=3")
    wait_for("three replicas", lambda: get(cluster, "deployment", "pool")["spec"]["replicas"] == 3)
    assert get(cluster, "spf", "pool")["status"]["selector"] == "stream2llm.io/pods=pool"


def test_an_object_of_somebody_else_is_never_touched(
    cluster: Any, operator: RunningOperator, minimal: dict[str, Any]
) -> None:
    cluster.kubectl("create", "service", "clusterip", "pool", "--tcp=80")
    before = get(cluster, "service", "pool")
    cluster.create(minimal)
    wait_for("NameConflict", lambda: condition(cluster, "Ready")[1] == "NameConflict")
    assert condition(cluster, "Stalled") == ("True", "NameConflict", "Service pool belongs to somebody else")
    assert get(cluster, "service", "pool") == before


MISTAKES: list[tuple[str, dict[str, Any], str, str]] = [
    ("policy", {"scheduling": {"policy": "lru"}}, "UnknownPolicy", "'lru' is not one of"),
    ("flag", {"engine": {"extraArgs": ["--dtype=half"]}}, "ExtraArgConflict", "is set by model.dtype"),
    (
        "template that the API server refuses",
        {"template": {"spec": {"containers": [{"name": "engine", "resources": {"limits": {"memory": "lots"}}}]}}},
        "TemplateRejected",
        "Deployment pool",
    ),
    (
        "unknown field in a template",
        {"template": {"spec": {"nodeSelektor": {"a": "b"}}}},
        "TemplateRejected",
        "nodeSelektor",
    ),
    ("value that no schema sees", {"streams": {"maxChunk": "2Mi"}}, "InvalidValue", "streams.maxChunk 2Mi must be"),
    ("autoscaling without Prometheus", {"autoscaling": {"maxReplicas": 4}}, "AutoscalingIncomplete", "prometheus"),
]


@pytest.mark.parametrize(
    ("change", "reason", "words"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES]
)
def test_a_mistake_has_its_reason_leaves_the_pool_running_and_heals(
    cluster: Any, operator: RunningOperator, minimal: dict[str, Any], change: dict[str, Any], reason: str, words: str
) -> None:
    serving(cluster, minimal)
    generation = get(cluster, "deployment", "pool")["metadata"]["generation"]
    cluster.patch({"spec": change})
    wait_for(reason, lambda: condition(cluster, "Ready")[1] == reason)
    assert words in condition(cluster, "Stalled")[2]
    assert get(cluster, "deployment", "pool")["metadata"]["generation"] == generation
    # What is required cannot be taken out, only what is in it.
    undo = {name: dict.fromkeys(value) if name == "streams" else None for name, value in change.items()}
    cluster.patch({"spec": undo})
    wait_for("Ready again", lambda: condition(cluster, "Ready")[0] == "True")


def test_profile_is_measured_kept_and_used(cluster: Any, operator: RunningOperator, minimal: dict[str, Any]) -> None:
    wanted = {**minimal, "gpu": {"product": "NVIDIA-H200"}, "engine": {"swap": {"cpu": "64Gi"}}}
    wanted["costProfile"] = {"measure": {"whileMissing": "Wait"}}
    cluster.create(wanted)
    wait_for("the Job", lambda: any(name.startswith("Job/pool-profile-") for name in children(cluster)))
    assert "Deployment/pool" not in children(cluster)
    wait_for("waiting", lambda: condition(cluster, "PodsReady")[1] == "WaitingForProfile")
    (job,) = json.loads(cluster.kubectl("get", "jobs", "-o", "json"))["items"]
    finish(cluster, job, profile_text())
    wait_for("the Deployment", lambda: "Deployment/pool" in children(cluster))
    assert condition(cluster, "Profiled")[:2] == ("True", "Measured")
    container = get(cluster, "deployment", "pool")["spec"]["template"]["spec"]["containers"][0]
    assert "--cost-profile" in container["args"]
    assert get(cluster, "spf", "pool")["status"]["costProfile"]["source"] == "measured"
    wait_for("the Job is cleared away", lambda: not any(name.startswith("Job/") for name in children(cluster)))


def test_resources_with_the_same_need_share_one_measurement(
    cluster: Any, operator: RunningOperator, minimal: dict[str, Any]
) -> None:
    wanted = {**minimal, "gpu": {"product": "NVIDIA-H200"}, "engine": {"swap": {"cpu": "64Gi"}}}
    for name in ("pool", "second"):
        cluster.create(wanted, name)
    wait_for("a Job", lambda: jobs(cluster) != [])
    (job,) = json.loads(cluster.kubectl("get", "jobs", "-o", "json"))["items"]
    finish(cluster, job, profile_text())
    cluster.create(wanted, "third")
    for name in ("pool", "second", "third"):
        wait_for(f"{name} is profiled", lambda name=name: condition(cluster, "Profiled", name)[1] == "Measured")

    def owners() -> set[str]:
        made = json.loads(cluster.kubectl("get", "configmaps", *MANAGED, "-o", "json"))["items"]
        (kept,) = [each for each in made if each["metadata"]["name"].startswith("stream2llm-profile-")]
        return {owner["name"] for owner in kept["metadata"]["ownerReferences"]}

    wait_for("all own it", lambda: owners() == {"pool", "second", "third"})


def test_a_measurement_that_nobody_needs_any_more_is_ended(
    cluster: Any, operator: RunningOperator, minimal: dict[str, Any]
) -> None:
    wanted = {**minimal, "gpu": {"product": "NVIDIA-H200"}, "engine": {"swap": {"cpu": "64Gi"}}}
    for name in ("pool", "second"):
        cluster.create(wanted, name)
    wait_for("a Job", lambda: jobs(cluster) != [])
    (first,) = jobs(cluster)
    # Another engine needs another profile; the other resource still needs the first one, whoever made its Job.
    cluster.patch({"spec": {"engine": {"maxBatchedTokens": 4096}}})
    wait_for("two Jobs", lambda: len(jobs(cluster)) == 2)
    assert first in jobs(cluster)
    cluster.patch({"spec": {"engine": {"maxBatchedTokens": 4096}}}, "second")
    wait_for("the second one is left", lambda: len(jobs(cluster)) == 1 and first not in jobs(cluster))
    for name in ("pool", "second"):
        cluster.patch({"spec": {"scheduling": {"preemption": "recompute"}}}, name)
    wait_for("none is left", lambda: jobs(cluster) == [])


def test_failed_profiling_says_why_and_the_pods_serve_without(
    cluster: Any, operator: RunningOperator, minimal: dict[str, Any]
) -> None:
    wanted = {**minimal, "gpu": {"product": "NVIDIA-H200"}, "engine": {"swap": {"cpu": "64Gi"}}}
    cluster.create(wanted)
    wait_for("the Job", lambda: any(name.startswith("Job/") for name in children(cluster)))
    (job,) = json.loads(cluster.kubectl("get", "jobs", "-o", "json"))["items"]
    finish(cluster, job, "no room for the KV cache", failed=True)
    wait_for("ProfilingFailed", lambda: condition(cluster, "Profiled")[1] == "ProfilingFailed")
    assert condition(cluster, "Profiled")[2] == "no room for the KV cache"
    wait_for("pods without a profile", lambda: "Deployment/pool" in children(cluster))
    container = get(cluster, "deployment", "pool")["spec"]["template"]["spec"]["containers"][0]
    assert container["args"][container["args"].index("--preemption") + 1] == "recompute"
    cluster.patch({"spec": {"costProfile": {"measure": {"rerun": {"id": "again"}}}}})
    wait_for("another Job", lambda: jobs(cluster) not in ([], [job["metadata"]["uid"]]))
