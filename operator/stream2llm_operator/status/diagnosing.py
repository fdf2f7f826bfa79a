"""What is wrong with pods, from their status, in one reason: the one that explains most. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

MAX_MESSAGE_CHARS = 600
MAX_WORDS_CHARS = 400
SETTLED_S = 5.0
"""A container that has run for less has not tried everything yet."""
_PULL = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
_CONFIG = ("CreateContainerConfigError", "CreateContainerError")
# From what a person must do something about to what time may heal.
_RANK = (
    "ImagePullFailed",
    "ReferenceMissing",
    "OutOfMemory",
    "CrashLoop",
    "NoGPUNode",
    "Unschedulable",
    "WaitingForGPU",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A reason (`status.reasons`) and what to tell a person."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class GPUs:
    """What pods ask for. missing: why no node has it, empty where one has or where nodes cannot be read."""

    resource: str = "nvidia.com/gpu"
    missing: str = ""


ANY_GPUS = GPUs()


def diagnose(pods: Iterable[Mapping[str, Any]], gpus: GPUs = ANY_GPUS) -> Finding | None:
    """The most telling trouble among these pods; None where there is none, or only time is needed.

    Pods that are being deleted do not count: they are on their way out.
    """
    found = [
        finding for pod in pods if not pod["metadata"].get("deletionTimestamp") for finding in _findings(pod, gpus)
    ]
    return min(found, key=lambda finding: _RANK.index(finding.reason), default=None)


def unready_addresses(pods: Iterable[Mapping[str, Any]], now: datetime) -> list[str]:
    """Of pods whose containers have run for a while and are not ready: they can be asked why."""
    found = []
    for pod in pods:
        status = pod.get("status", {})
        for container in status.get("containerStatuses") or ():
            started = ((container.get("state") or {}).get("running") or {}).get("startedAt")
            if container.get("ready") or not started or not status.get("podIP"):
                continue
            if (now - datetime.fromisoformat(started)).total_seconds() >= SETTLED_S:
                found.append(str(status["podIP"]))
    return sorted(set(found))


def _findings(pod: Mapping[str, Any], gpus: GPUs) -> Iterator[Finding]:
    name, status = pod["metadata"]["name"], pod.get("status", {})
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            yield _unschedulable(name, str(condition.get("message", "")), gpus)
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason, message = waiting.get("reason", ""), str(waiting.get("message", ""))
        where = f"pod {name}, container {container['name']}"
        ended = (
            (container.get("lastState") or {}).get("terminated")
            or (container.get("state") or {}).get("terminated")
            or {}
        )
        if reason in _PULL:
            yield Finding("ImagePullFailed", _cut(f"{where}: {container.get('image', '')}: {message or reason}"))
        elif reason in _CONFIG:
            yield Finding("ReferenceMissing", _cut(f"{where}: {message or reason}"))
        elif ended.get("reason") == "OOMKilled" and not container.get("ready"):
            yield Finding("OutOfMemory", f"{where} was killed for its memory limit")
        elif reason == "CrashLoopBackOff":
            words = _last(str(ended.get("message", ""))) or f"exit status {ended.get('exitCode', 'unknown')}"
            yield Finding("CrashLoop", f"{where}, {container.get('restartCount', 0)} restarts: {words}")


def _unschedulable(name: str, message: str, gpus: GPUs) -> Finding:
    if gpus.missing:
        return Finding("NoGPUNode", _cut(f"pod {name}: {gpus.missing}"))
    if f"Insufficient {gpus.resource}" in message:
        return Finding("WaitingForGPU", _cut(f"pod {name}: {message}"))
    return Finding("Unschedulable", _cut(f"pod {name}: {message}"))


def _last(text: str) -> str:
    """The end of it: what ended a container is in its last words, after however long a traceback."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_WORDS_CHARS else f"…{line[1 - MAX_WORDS_CHARS :]}"


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_MESSAGE_CHARS else line[: MAX_MESSAGE_CHARS - 1] + "…"
