from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from stream2llm_operator.status.diagnosing import (
    MAX_MESSAGE_CHARS,
    MAX_WORDS_CHARS,
    Finding,
    GPUs,
    diagnose,
    unready_addresses,
)


def pod(name: str = "a", *, scheduled: str | None = None, deleted: bool = False, **container: Any) -> dict[str, Any]:
    conditions = [] if scheduled is None else [{"type": "PodScheduled", "status": "False", "message": scheduled}]
    metadata = {"name": name, **({"deletionTimestamp": "2026-11-30T00:00:00Z"} if deleted else {})}
    statuses = [{"name": "engine", "image": "img:1", "ready": False, **container}] if container else []
    return {"metadata": metadata, "status": {"conditions": conditions, "containerStatuses": statuses}}


@pytest.mark.parametrize(
    ("sick", "reason", "words"),
    [
        (
            pod(state={"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "img:1"'}}),
            "ImagePullFailed",
            'pod a, container engine: img:1: Back-off pulling image "img:1"',
        ),
        (
            pod(state={"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hub" not found'}}),
            "ReferenceMissing",
            'pod a, container engine: secret "hub" not found',
        ),
        (
            pod(
                state={"waiting": {"reason": "CrashLoopBackOff"}},
                lastState={"terminated": {"reason": "OOMKilled", "exitCode": 137}},
            ),
            "OutOfMemory",
            "pod a, container engine was killed for its memory limit",
        ),
        (
            pod(
                state={"waiting": {"reason": "CrashLoopBackOff"}},
                lastState={"terminated": {"reason": "Error", "exitCode": 2, "message": "no such\nmodel"}},
                restartCount=3,
            ),
            "CrashLoop",
            "pod a, container engine, 3 restarts: no such model",
        ),
        (
            pod(scheduled="0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
            "WaitingForGPU",
            "pod a: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        ),
        (
            pod(scheduled="0/3 nodes are available: 3 Insufficient memory."),
            "Unschedulable",
            "pod a: 0/3 nodes are available: 3 Insufficient memory.",
        ),
    ],
)
def test_each_trouble_has_its_reason(sick: dict[str, Any], reason: str, words: str) -> None:
    assert diagnose([sick]) == Finding(reason, words)


def test_a_gpu_that_no_node_has_is_not_waited_for() -> None:
    sick = pod(scheduled="0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.")
    assert diagnose([sick], GPUs(missing="no node offers it")) == Finding("NoGPUNode", "pod a: no node offers it")
    assert diagnose([pod()], GPUs(missing="no node offers it")) is None


def test_what_a_person_must_mend_comes_before_what_time_heals() -> None:
    waiting = pod("a", scheduled="3 Insufficient nvidia.com/gpu.")
    pulling = pod("b", state={"waiting": {"reason": "ErrImagePull", "message": "not found"}})
    found = diagnose([waiting, pulling])
    assert found is not None
    assert found.reason == "ImagePullFailed"


def test_pods_that_go_and_pods_that_load_are_no_trouble() -> None:
    loading = pod("a", state={"running": {}})
    going = pod("b", deleted=True, state={"waiting": {"reason": "ErrImagePull"}})
    assert diagnose([loading, going, pod("c")]) is None


def test_a_container_that_recovered_from_its_memory_limit_is_no_trouble() -> None:
    recovered = pod(state={"running": {}}, lastState={"terminated": {"reason": "OOMKilled"}}, ready=True)
    assert diagnose([recovered]) is None


def test_of_a_long_log_the_last_words_are_kept() -> None:
    log = "Traceback\n" + "  File x\n" * 1000 + "ValueError: no such model"
    ended = {"terminated": {"exitCode": 1, "message": log}}
    found = diagnose([pod(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ended, restartCount=1)])
    assert found is not None
    assert found.message.startswith("pod a, container engine, 1 restarts: …")
    assert found.message.endswith("File x ValueError: no such model")
    assert len(found.message) == len("pod a, container engine, 1 restarts: ") + MAX_WORDS_CHARS


def test_who_runs_for_a_while_without_being_ready_can_be_asked() -> None:
    now = datetime(2026, 11, 30, 12, 0, 10, tzinfo=UTC)

    def router(address: str, started: str, *, ready: bool = False) -> dict[str, Any]:
        made = pod(state={"running": {"startedAt": f"2026-11-30T12:00:{started}Z"}}, ready=ready)
        made["status"]["podIP"] = address
        return made

    waiting = pod(state={"waiting": {"reason": "ErrImagePull"}})
    pods = [router("10.0.0.2", "05"), router("10.0.0.3", "06"), router("10.0.0.4", "00", ready=True), waiting]
    assert unready_addresses([*pods, router("10.0.0.1", "00")], now) == ["10.0.0.1", "10.0.0.2"]


def test_messages_are_cut() -> None:
    found = diagnose([pod(scheduled="x" * 10_000)])
    assert found is not None
    assert len(found.message) == MAX_MESSAGE_CHARS
