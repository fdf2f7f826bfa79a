"""The bench's HorizontalPodAutoscaler decides as the real controller does, on the same series, look by look."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from control_plane import ControlPlane
from external_metrics import PREFIX, Adapter
from keda import external_metrics_are_served, serve_external_metrics
from kube_api import KubeApi
from scenarios import MINIMAL, pool

from stream2llm_bench.autoscale.hpa import Autoscaler, Behavior, Metric, Policy, Rules
from stream2llm_operator.desired.scaling import scaler

pytestmark = pytest.mark.autoscale

NAMESPACE, NAME = "search", "llama"
SERIES = tuple(
    f"stream2llm:pool_{name}"
    for name in ("open_streams", "prefill_backlog_seconds", "kv_cache_usage", "preemption_signal")
)
OPEN_STREAMS_TARGET, BACKLOG_TARGET, KV_TARGET = 10, 5, 0.8
LOOK_S = 1.5
"""Looks are so far apart, and windows and periods end in the middle between two of them."""
DOWN_WINDOW_S, DOWN_S, UP_S = 7, 5, 4
SETTLED_S = 0.4
MOST = 9

Figures = tuple[float | None, float | None, float | None, float | None]
STEADY: Figures = (4, 0, 0.5, 0)
SCRIPT: list[tuple[int, Figures]] = [
    (3, STEADY),
    # Within the tolerance, and beyond it.
    (3, (10.5, 0, 0.5, 0)),
    (6, (25, 2, 0.5, 0)),
    # The signal grows by a quarter, at most so much in a while.
    (14, (4, 0, 0.5, 1.25)),
    # It holds, whatever the loads.
    (4, (4, 0, 0.5, 1)),
    # One series missing: never down, but up.
    (4, (4, None, 0.5, 0)),
    (8, (75, None, 0.5, 0)),
    # All missing.
    (4, (None, None, None, None)),
    (14, (30, 0, 1.0, 0)),
    # A burst in the middle of shrinking begins the window anew.
    (1, (80, 0, 1.0, 0)),
    (40, STEADY),
]
"""How many looks see which figures."""


@dataclass
class Look:
    """One pass of the controller: when, what it was told, and how many pods there were."""

    at_s: float
    figures: Figures
    pods: int


@dataclass
class Script:
    """Answers the adapter. A pass asks for all series in turn, the first of them first."""

    node: ReadyPods
    looks: list[Look] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._coming = itertools.chain.from_iterable([figures] * looks for looks, figures in SCRIPT)
        self._figures: Figures = STEADY
        self.is_over = False

    def figure(self, series: str, labels: dict[str, str]) -> float | None:
        assert labels == {"namespace": NAMESPACE, "pool": NAME}
        if series == SERIES[0]:
            self._next()
        return self._figures[SERIES.index(series)]

    def _next(self) -> None:
        time.sleep(LOOK_S - time.monotonic() % LOOK_S)
        pods = self.node.settled_pods()
        if pods is None:
            # The controller may have read a number that is not true any more: it must not decide by it.
            self._figures = (None, None, None, None)
            return
        found = next(self._coming, None)
        if found is None:
            self.is_over = True
        self._figures = found or STEADY
        if found is not None:
            self.looks.append(Look(time.monotonic(), found, pods))


class ReadyPods:
    """Makes every pod of the Deployment ready, and knows how many there have been for a moment."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._pods, self._since_s = 0, time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> ReadyPods:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def settled_pods(self) -> int | None:
        """As many as are wanted, are there and are ready; None while that changes."""
        with self._lock:
            return self._pods if self._pods and time.monotonic() - self._since_s > SETTLED_S else None

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            try:
                pods = self._look()
            except httpx.HTTPError:
                pods = 0
            with self._lock:
                if pods != self._pods:
                    self._pods, self._since_s = pods, time.monotonic()

    def _look(self) -> int:
        """The number of pods if all is as wanted, else 0."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        pods = [pod for pod in self._api.get(path)["items"] if "deletionTimestamp" not in pod["metadata"]]
        for pod in pods:
            if pod.get("status", {}).get("phase") != "Running":
                ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-30T00:00:00Z"}
                status = {"phase": "Running", "conditions": [ready], "startTime": "2026-11-30T00:00:00Z"}
                self._api.patch(f"{path}/{pod['metadata']['name']}/status", {"status": status})
        found = self._api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{NAME}")
        counts = {found["spec"]["replicas"], found.get("status", {}).get("readyReplicas", 0), len(pods)}
        counts.add(found.get("status", {}).get("replicas", 0))
        return counts.pop() if len(counts) == 1 else 0


def manifest() -> dict[str, Any]:
    """What the operator makes, for a Deployment."""
    spec = {
        **MINIMAL,
        "streams": {**MINIMAL["streams"], "maxOpenStreams": OPEN_STREAMS_TARGET},
        "autoscaling": {
            "maxReplicas": MOST,
            "hpa": {"metricPrefix": PREFIX},
            "targets": {"prefillBacklogSeconds": BACKLOG_TARGET, "kvCacheUsagePercent": round(KV_TARGET * 100)},
            "behavior": {
                "scaleUp": {
                    "policies": [
                        {"type": "Pods", "value": 1, "periodSeconds": UP_S},
                        {"type": "Percent", "value": 50, "periodSeconds": UP_S},
                    ]
                },
                "scaleDown": {
                    "stabilizationWindowSeconds": DOWN_WINDOW_S,
                    "policies": [{"type": "Pods", "value": 1, "periodSeconds": DOWN_S}],
                },
            },
        },
    }
    made = scaler(pool(spec, NAME))
    assert made is not None
    made["metadata"].pop("ownerReferences")
    made["spec"]["scaleTargetRef"] = {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME}
    return made


DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": NAME},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"app": NAME}},
        "template": {
            "metadata": {"labels": {"app": NAME}},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "i"}]},
        },
    },
}


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    with ControlPlane(tmp_path / "kubernetes", controllers=True) as plane:
        api = KubeApi(plane)
        plane.kubectl("create", "namespace", NAMESPACE)
        with ReadyPods(api) as node:
            made = Script(node)
            with Adapter(tmp_path / "adapter", made.figure) as adapter:
                serve_external_metrics(api, "default", "adapter", adapter.port, adapter.authority)
                plane.components.wait("the adapter's API", lambda: external_metrics_are_served(api))
                api.create(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments", DEPLOYMENT)
                plane.components.wait("a first pod", lambda: node.settled_pods() == 1)
                api.create(f"/apis/autoscaling/v2/namespaces/{NAMESPACE}/horizontalpodautoscalers", manifest())
                plane.components.wait("the end of the series", lambda: made.is_over, 600)
                yield made
        api.close()


def replayed(looks: list[Look]) -> list[int]:
    """What our function decides at each look, from the number of pods that the controller had then."""
    up = Rules(0.0, (Policy(UP_S, pods=1), Policy(UP_S, percent=50.0)))
    down = Rules(float(DOWN_WINDOW_S), (Policy(DOWN_S, pods=1),))
    ours = Autoscaler(Behavior(up, down, 1, MOST))
    decided = []
    for look in looks:
        streams, backlog, kv, signal = look.figures
        metrics = [Metric(streams, OPEN_STREAMS_TARGET), Metric(backlog, BACKLOG_TARGET), Metric(kv, KV_TARGET)]
        decided.append(ours.decide(look.at_s, look.pods, [*metrics, Metric(signal, 1, per_pod=False)]))
    return decided


def test_the_function_decides_as_the_controller(script: Script, output: Path) -> None:
    looks = script.looks
    decided, pods = replayed(looks), [look.pods for look in looks]
    rows = [
        f"{look.at_s - looks[0].at_s:6.1f} s  {json.dumps(look.figures):>28}  {look.pods}, ours {ours}, then {then}"
        for look, ours, then in zip(looks, decided, [*pods[1:], 0], strict=True)
    ]
    (output / "decisions.txt").write_text("\n".join(rows) + "\n")
    assert decided[:-1] == pods[1:], "\n".join(rows)
    # The series makes it do everything that it can.
    assert (max(pods), pods[-1]) == (MOST, 1)
