from __future__ import annotations

from typing import Any

from stream2llm_operator.shrinking import COST_ANNOTATION, due_costs, open_streams, shrinks


def pod(name: str, cost: str | None = None, **more: Any) -> dict[str, Any]:
    annotations = {} if cost is None else {"annotations": {COST_ANNOTATION: cost}}
    return {"metadata": {"name": name, **annotations, **more}}


def deployment(replicas: int) -> dict[str, Any]:
    return {"spec": {"replicas": replicas}}


def test_only_fewer_pods_are_a_shrinking() -> None:
    assert shrinks(deployment(3), deployment(2))
    assert not shrinks(deployment(2), deployment(2))
    assert not shrinks(deployment(2), deployment(3))
    assert not shrinks(None, deployment(1))
    assert shrinks({"spec": {}}, deployment(0))


def test_a_pod_costs_its_open_streams() -> None:
    streams = {"busy": 7, "idle": 0, "busy-no-more": 0, "same": 2}
    pods = [pod("busy"), pod("idle"), pod("busy-no-more", "5"), pod("same", "2"), pod("unknown", "3")]
    assert due_costs(pods, streams) == {"busy": "7", "busy-no-more": "0", "unknown": "0"}


def test_a_pod_that_goes_is_left_alone() -> None:
    assert due_costs([pod("busy", deletionTimestamp="2026-11-30T00:00:00Z")], {"busy": 7}) == {}


def test_costs_stay_in_kubernetes_range() -> None:
    assert due_costs([pod("busy")], {"busy": 2**40}) == {"busy": "2147483647"}


def test_what_a_router_should_not_say_is_left_out() -> None:
    pods = {"a": {"open_streams": 3}, "b": {"open_streams": -1}, "c": {}, "d": "x", "e": {"open_streams": True}}
    assert open_streams({"pods": pods}) == {"a": 3}
    assert open_streams({"pods": []}) == {}
    assert open_streams({}) == {}
