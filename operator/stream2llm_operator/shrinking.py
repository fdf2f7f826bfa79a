"""Which pods go first when a pool gets smaller: those that the fewest open streams would have to leave. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
MAX_COST = 2**31 - 1


def shrinks(found: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> bool:
    """Whether applying the Deployment `wanted` takes pods away."""
    return found is not None and int(wanted["spec"]["replicas"]) < int(found["spec"].get("replicas", 1))


def open_streams(status: Mapping[str, Any]) -> dict[str, int]:
    """Open streams by pod, from a router's `/status.json`. What cannot be read is left out: it comes from elsewhere."""
    pods = status.get("pods")
    found = {}
    for name, pod in pods.items() if isinstance(pods, Mapping) else ():
        count = pod.get("open_streams") if isinstance(pod, Mapping) else None
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            found[str(name)] = count
    return found


def due_costs(pods: Iterable[Mapping[str, Any]], streams: Mapping[str, int]) -> dict[str, str]:
    """Deletion costs to write, by pod: its open streams. A pod that no router knows has none to lose.

    Pods that are going already, or that have the right cost, are left out.
    """
    due = {}
    for pod in pods:
        metadata = pod["metadata"]
        cost = str(min(streams.get(metadata["name"], 0), MAX_COST))
        there = (metadata.get("annotations") or {}).get(COST_ANNOTATION)
        if not metadata.get("deletionTimestamp") and cost != (there or "0"):
            due[metadata["name"]] = cost
    return due
