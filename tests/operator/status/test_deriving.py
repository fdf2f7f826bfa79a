from __future__ import annotations

from typing import Any

from scenarios import MINIMAL, pool

from stream2llm_operator.api.status import Status
from stream2llm_operator.status.deriving import Verdict, Workload, conditions, status, verdicts
from stream2llm_operator.status.diagnosing import Finding, GPUs
from stream2llm_operator.status.reasons import CONDITIONS, REASONS

POOL = pool(MINIMAL)
PROFILED = Verdict(True, "NotNeeded")
NOTHING = Workload(None, ())


def deployment(wanted: int, ready: int, *, updated: int | None = None, **more: Any) -> dict[str, Any]:
    counts = {
        "observedGeneration": 1,
        "replicas": wanted,
        "updatedReplicas": wanted if updated is None else updated,
        "readyReplicas": ready,
    }
    return {"metadata": {"generation": 1}, "spec": {"replicas": wanted}, "status": {**counts, **more}}


def waiting(reason: str) -> dict[str, Any]:
    container = {"name": "engine", "ready": False, "state": {"waiting": {"reason": reason, "message": "words"}}}
    return {"metadata": {"name": "p"}, "status": {"containerStatuses": [container]}}


def found(
    pods: Workload = NOTHING,
    routers: Workload = NOTHING,
    *,
    stalled: Finding | None = None,
    profiled: Verdict = PROFILED,
    waiting_for_profile: bool = False,
    redis: Finding | None = None,
) -> dict[str, Verdict]:
    return verdicts(
        stalled=stalled,
        profiled=profiled,
        pods=pods,
        routers=routers,
        scaling=Verdict(True, "NotAutoscaled"),
        waiting_for_profile=waiting_for_profile,
        gpus=GPUs(),
        redis=redis,
    )


UP = Workload(deployment(2, 2), ())


def test_all_there() -> None:
    result = found(UP, UP)
    assert result["Ready"] == Verdict(True, "Serving", "2 of 2 ready")
    assert {name: verdict.holds for name, verdict in result.items()} == {
        "Profiled": True,
        "PodsReady": True,
        "RouterReady": True,
        "ScalingReady": True,
        "Stalled": False,
        "Ready": True,
    }


def test_nothing_there_yet_is_unknown_and_not_false() -> None:
    assert found()["Ready"] == Verdict(None, "Pending")


def test_ready_has_the_reason_of_what_stands_in_the_way() -> None:
    sick = Workload(deployment(2, 1), (waiting("ImagePullBackOff"),))
    ready = found(sick, UP)["Ready"]
    assert (ready.holds, ready.reason) == (False, "ImagePullFailed")
    assert ready.message == "1 of 2 ready; pod p, container engine: : words"


def test_one_router_is_enough_and_one_pod_is_not() -> None:
    half = Workload(deployment(2, 1), ())
    assert found(UP, half)["RouterReady"] == Verdict(True, "AllReady", "1 of 2 ready")
    assert found(half, UP)["PodsReady"] == Verdict(False, "Starting", "1 of 2 ready")


def test_redis_that_routers_miss_explains_the_pods_too() -> None:
    away = Finding("RedisUnreachable", "routers cannot reach redis://r:6379")
    sick = Workload(deployment(1, 0), (waiting("ImagePullBackOff"),))
    result = found(sick, Workload(deployment(1, 0), ()), redis=away)
    assert result["RouterReady"] == result["Ready"] == Verdict(False, away.reason, away.message)
    assert result["PodsReady"].reason == "ImagePullFailed"
    # Somebody is ready by now: what was said before no longer counts.
    assert found(UP, UP, redis=away)["RouterReady"].reason == "AllReady"


def test_router_that_runs_without_being_ready_is_said() -> None:
    running = {
        "metadata": {"name": "r"},
        "status": {"containerStatuses": [{"name": "router", "state": {"running": {}}}]},
    }
    assert found(UP, Workload(deployment(1, 0), (running,)))["RouterReady"] == Verdict(
        False, "NotReady", "0 of 1 ready"
    )


def test_rollout_startup_deadline_and_zero() -> None:
    assert found(Workload(deployment(2, 1, updated=1), ()), UP)["PodsReady"].reason == "RollingOut"
    late = deployment(2, 1, conditions=[{"type": "Progressing", "reason": "ProgressDeadlineExceeded"}])
    assert found(Workload(late, ()), UP)["PodsReady"].reason == "StartupTimedOut"
    assert found(Workload(deployment(0, 0), ()), UP)["PodsReady"] == Verdict(True, "ScaledToZero")


def test_a_first_rollout_replaces_nothing() -> None:
    unseen = {"metadata": {"generation": 1}, "spec": {"replicas": 2}, "status": {}}
    assert found(Workload(unseen, ()), UP)["PodsReady"] == Verdict(False, "Starting", "0 of 2 ready")


def test_old_pods_beside_all_new_ones_are_a_rollout_still() -> None:
    draining = deployment(2, 2, replicas=3)
    assert found(Workload(draining, ()), UP)["PodsReady"].holds is False


def test_a_stalled_spec_says_so_though_old_pods_serve() -> None:
    ready = found(UP, UP, stalled=Finding("UnknownPolicy", "no lru"))["Ready"]
    assert ready == Verdict(False, "UnknownPolicy", "no lru")


def test_waiting_for_a_profile_shows_the_profile_s_reason() -> None:
    result = found(NOTHING, UP, profiled=Verdict(False, "ProfilingFailed", "words"), waiting_for_profile=True)
    assert result["PodsReady"] == Verdict(False, "WaitingForProfile", "words")
    assert result["Ready"] == Verdict(False, "ProfilingFailed", "words")


def test_transition_time_moves_only_with_the_status() -> None:
    first = conditions(1, (), found(UP, UP), "t1")
    assert [condition["type"] for condition in first] == list(CONDITIONS)
    same = conditions(2, first, found(UP, UP), "t2")
    assert {condition["lastTransitionTime"] for condition in same} == {"t1"}
    assert {condition["observedGeneration"] for condition in same} == {2}
    changed = conditions(2, first, found(NOTHING, UP), "t2")
    assert {c["type"]: c["lastTransitionTime"] for c in changed if c["lastTransitionTime"] == "t2"} == {
        "Ready": "t2",
        "PodsReady": "t2",
    }


def test_status_is_what_the_types_say_and_does_not_change_by_itself() -> None:
    def made(previous: dict[str, Any], now: str) -> dict[str, Any]:
        return status(
            POOL,
            previous,
            found(UP, UP),
            now=now,
            pods=UP,
            engine_version="0.32.0",
            gpu_product="NVIDIA-H200",
            profile=None,
        )

    first = made({}, "2026-11-30T00:00:00Z")
    assert Status.model_validate(first).ready_replicas == 2
    assert first["selector"] == "stream2llm.io/pods=llama"
    assert first["ingressKeyPrefix"] == "s2l:{search/llama}"
    assert first["url"] == "http://llama-router.search.svc:8080"
    assert made(first, "2026-11-30T01:00:00Z") == first


def test_every_reason_is_in_the_table_and_may_stand_there() -> None:
    states = [NOTHING, UP, Workload(deployment(2, 0), ()), Workload(deployment(0, 0), ())]
    states += [Workload(deployment(2, 0), (waiting(reason),)) for reason in ("ErrImagePull", "CreateContainerError")]
    for pods in states:
        for routers in states[:3]:
            for name, verdict in found(pods, routers).items():
                if name != "Ready":
                    assert name in REASONS[verdict.reason].conditions
                assert verdict.reason in REASONS
