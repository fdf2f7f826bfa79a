"""A node whose containers are plain processes of this machine: it does for pods of ours what a kubelet does.

It binds pods to itself, starts what their containers say, each on a loopback address of its own, probes readiness,
tells the API server, sends SIGTERM when a pod is deleted, waits for it to leave, and starts again what has ended.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from forking import CLOCK_AHEAD, Launcher
from kube_api import KubeApi

NODE = "processes"
TICK_S = 0.25
BEAT_S = 5.0
PROBE_TIMEOUT_S = 2.0
PORTS = {"engine": 8000, "router": 8080}
PROBES = {"engine": "/ready", "router": "/health"}


@dataclass(slots=True)
class Running:
    """One pod's process. deleted_s: since when it is to leave, by time.monotonic."""

    name: str
    container: str
    address: str
    pid: int = 0
    restarts: int = 0
    is_ready: bool = False
    told: tuple[Any, ...] = ()
    started: str = ""
    deleted_s: float | None = None
    log: Path = field(default_factory=Path)

    @property
    def port(self) -> int:
        return PORTS[self.container]

    def gone(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def signal(self, number: int) -> None:
        """To all its processes, as a container that is frozen."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class ProcessNode:
    """Start it as a context. folders: what containers see under a mount path, such as {"/model": FOLDER}."""

    def __init__(
        self, api: KubeApi, namespace: str, launcher: Launcher, folder: Path, folders: Mapping[str, Path]
    ) -> None:
        self._api, self._namespace, self._launcher = api, namespace, launcher
        self._folder, self._folders = folder, folders
        self._network = f"127.{random.randint(2, 250)}.{random.randint(1, 250)}"
        self._numbers = iter(range(1, 255))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="process node", daemon=True)
        self._lock = threading.Lock()
        self._running: dict[str, Running] = {}
        self._beaten_s = 0.0
        self.clock_ahead_s = 0.0
        """Of what is started from now on: this machine's clock was set wrong."""
        self.troubles: list[BaseException] = []
        """What went wrong; to be empty at the end."""

    def __enter__(self) -> ProcessNode:
        for port in PORTS.values():
            _check_free(f"{self._network}.254", port)
        self._api.create("/api/v1/nodes", {"metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}}})
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for running in self.pods():
            running.kill()

    def pods(self, container: str = "") -> list[Running]:
        """All that run, or those of one kind (`engine`, `router`), the oldest first."""
        with self._lock:
            return [each for each in self._running.values() if container in ("", each.container)]

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                if time.monotonic() - self._beaten_s > BEAT_S:
                    self._beat()
                self._look()
            except httpx.HTTPError:
                # The API server is away, or somebody was faster: look again.
                continue
            except Exception as error:
                self.troubles.append(error)

    def _beat(self) -> None:
        self._beaten_s, now = time.monotonic(), _now()
        ready = {"type": "Ready", "status": "True", "reason": "Beats", "message": "", "lastHeartbeatTime": now}
        room = {"cpu": "64", "memory": "256Gi", "pods": "200"}
        status = {"conditions": [ready], "capacity": room, "allocatable": room}
        self._api.patch(f"/api/v1/nodes/{NODE}/status", {"status": status})

    def _look(self) -> None:
        pods = {pod["metadata"]["uid"]: pod for pod in self._api.get(self._path())["items"]}
        for uid in set(self._running) - set(pods):
            # Deleted by force.
            with self._lock:
                self._running.pop(uid).kill()
        for uid, pod in pods.items():
            if uid in self._running:
                self._attend(uid, pod, self._running[uid])
            elif "deletionTimestamp" in pod["metadata"]:
                self._api.delete(self._path(pod["metadata"]["name"]), gracePeriodSeconds=0)
            elif pod["spec"]["containers"][0]["name"] in PORTS:
                self._take(uid, pod)

    def _take(self, uid: str, pod: Mapping[str, Any]) -> None:
        name = pod["metadata"]["name"]
        if not pod["spec"].get("nodeName"):
            target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
            self._api.create(f"{self._path(name)}/binding", {"metadata": {"name": name}, "target": target})
        container = pod["spec"]["containers"][0]["name"]
        running = Running(name, container, f"{self._network}.{next(self._numbers)}", started=_now())
        running.log = self._folder / f"{name}.log"
        self._start(running, pod)
        with self._lock:
            self._running[uid] = running

    def _start(self, running: Running, pod: Mapping[str, Any]) -> None:
        container = pod["spec"]["containers"][0]
        values = {"metadata.name": running.name, "status.podIP": running.address}
        environment: dict[str, str] = {}
        for variable in container["env"]:
            source = variable.get("valueFrom", {}).get("fieldRef")
            text = values[source["fieldPath"]] if source else variable.get("value", "")
            for known, value in environment.items():
                text = text.replace(f"$({known})", value)
            environment[variable["name"]] = text
        # Only a container has a home of its own.
        for name in ("HOME", "HF_HOME"):
            environment.pop(name, None)
        if self.clock_ahead_s:
            environment[CLOCK_AHEAD] = str(self.clock_ahead_s)
        mounts = {**self._folders, **self._config_maps(running.name, pod)}
        arguments = list(container["args"])
        for path, folder in mounts.items():
            arguments = [argument.replace(path, str(folder)) for argument in arguments]
        arguments = [argument.replace("0.0.0.0:", f"{running.address}:") for argument in arguments]
        if running.container == "engine":
            arguments += ["--host", running.address]
        running.pid = self._launcher.start(arguments, running.log, environment)

    def _config_maps(self, name: str, pod: Mapping[str, Any]) -> dict[str, Path]:
        """The mounted ConfigMaps as folders, by mount path."""
        found = {}
        mounts = {each["name"]: each["mountPath"] for each in pod["spec"]["containers"][0].get("volumeMounts", ())}
        for volume in pod["spec"].get("volumes", ()):
            if "configMap" not in volume or volume["name"] not in mounts:
                continue
            path = f"/api/v1/namespaces/{self._namespace}/configmaps/{volume['configMap']['name']}"
            folder = self._folder / f"{name}-{volume['name']}"
            folder.mkdir(exist_ok=True)
            for file, text in self._api.get(path).get("data", {}).items():
                (folder / file).write_text(text)
            found[mounts[volume["name"]]] = folder
        return found

    def _attend(self, uid: str, pod: Mapping[str, Any], running: Running) -> None:
        if "deletionTimestamp" in pod["metadata"]:
            if running.deleted_s is None:
                running.deleted_s = time.monotonic()
                with suppress(ProcessLookupError):
                    os.kill(running.pid, signal.SIGTERM)
            grace_s = pod["metadata"].get("deletionGracePeriodSeconds") or 0
            if running.gone() or time.monotonic() - running.deleted_s > grace_s:
                running.kill()
                self._api.delete(self._path(running.name), gracePeriodSeconds=0)
                with self._lock:
                    self._running.pop(uid)
                return
        elif running.gone():
            running.restarts += 1
            self._start(running, pod)
        running.is_ready = _answers(f"http://{running.address}:{running.port}{PROBES[running.container]}")
        self._tell(pod, running)

    def _tell(self, pod: Mapping[str, Any], running: Running) -> None:
        state = (running.is_ready, running.restarts)
        if state == running.told:
            return
        now, name = _now(), pod["spec"]["containers"][0]["name"]
        is_ready = "True" if running.is_ready else "False"
        conditions = [
            {"type": kind, "status": is_ready if "Ready" in kind else "True", "lastTransitionTime": now}
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ]
        status = {
            "phase": "Running",
            "startTime": running.started,
            "podIP": running.address,
            "podIPs": [{"ip": running.address}],
            "conditions": conditions,
            "containerStatuses": [
                {
                    "name": name,
                    "image": pod["spec"]["containers"][0]["image"],
                    "imageID": "",
                    "ready": running.is_ready,
                    "started": True,
                    "restartCount": running.restarts,
                    "state": {"running": {"startedAt": running.started}},
                }
            ],
        }
        self._api.patch(f"{self._path(running.name)}/status", {"status": status})
        running.told = state

    def _path(self, name: str = "") -> str:
        return f"/api/v1/namespaces/{self._namespace}/pods" + (f"/{name}" if name else "")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=PROBE_TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _check_free(address: str, port: int) -> None:
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except OSError as error:
            raise RuntimeError(f"port {port} must be free on all addresses of this machine: {error}") from error


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def targets(node: ProcessNode) -> str:
    """Prometheus' file of what to read: every pod that runs."""
    return json.dumps([{"targets": [f"{each.address}:{each.port}"]} for each in node.pods()])
