"""A pool whose autoscaling loop is closed: API server, controllers, operator, Prometheus, routers and pods, all real.

Pods run on the simulated executor; everything else about them is as in production. Times of the loop are ten times
shorter than by default: windows of the rules, scrapes, and the autoscaler's behavior.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from control_plane import ControlPlane
from forking import Launcher
from kube_api import KubeApi
from loading import Load
from monitoring import Prometheus, Speed
from operator_process import RunningOperator
from process_node import ProcessNode
from timeline import Moment, Timeline

from stream2llm.keys import PoolKeys
from stream2llm_bench.simulated_core import EXECUTOR
from stream2llm_operator.desired.scaling import DOWN_STEP_S, DOWN_WINDOW_S, STEP_S

ROOT = Path(__file__).resolve().parent.parent.parent
NAMESPACE, NAME = "loop", "pool"
SPEED = Speed(10)
MOST_PODS = 4
KV_BLOCKS, BLOCK_TOKENS = 64, 32
SIMULATION = {"paced": True, "step_ms": 20.0, "token_us": 300.0, "computes_values": False}
ALL, DEAD_PORT = "*", 1
PATIENCE_S = 400.0
"""For anything that must come; a busy machine may be many times slower than an idle one."""


def spec(redis_url: str, prometheus: str, **autoscaling: Any) -> dict[str, Any]:
    """The resource: one small KV cache a pod, and the default targets."""
    extra = ["--distributed-executor-backend", EXECUTOR, "--additional-config", json.dumps({"simulation": SIMULATION})]
    extra += ["--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(KV_BLOCKS), "--enforce-eager"]
    behavior = {
        "scaleUp": {
            "policies": [
                {"type": "Pods", "value": 1, "periodSeconds": SPEED.seconds(STEP_S)},
                {"type": "Percent", "value": 50, "periodSeconds": SPEED.seconds(STEP_S)},
            ]
        },
        "scaleDown": {
            "stabilizationWindowSeconds": SPEED.seconds(DOWN_WINDOW_S),
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": SPEED.seconds(DOWN_STEP_S)}],
        },
    }
    return {
        "model": {
            "name": "tiny",
            "source": {"pvc": {"claimName": "weights"}},
            "dtype": "float32",
            "maxLengthTokens": 1024,
        },
        "engine": {"device": "CPU", "maxBatchedTokens": 512, "maxSequences": 128, "extraArgs": extra},
        "scheduling": {"preemption": "recompute"},
        "streams": {"redis": {"url": redis_url}, "maxOpenStreams": 64},
        "router": {"replicas": 1},
        "replicas": 1,
        "drain": {"timeoutSeconds": 60},
        "autoscaling": {
            "maxReplicas": MOST_PODS,
            "prometheus": {"serverAddress": prometheus},
            "behavior": behavior,
            **autoscaling,
        },
    }


class PoolLoop:
    """The processes of one loop, and what they say."""

    def __init__(
        self,
        plane: ControlPlane,
        api: KubeApi,
        prometheus: Prometheus,
        node: ProcessNode,
        operator: RunningOperator,
        load: Load,
        hosts: Path,
    ) -> None:
        self.plane, self.api, self.prometheus, self.node = plane, api, prometheus, node
        self.operator, self.load, self._hosts = operator, load, hosts
        self.timeline = Timeline(self._look)
        self.unread: set[str] = set()
        """Pods that Prometheus finds and whose scrapes nobody answers, by name; or ALL."""

    @property
    def path(self) -> str:
        return f"/apis/stream2llm.io/v1alpha1/namespaces/{NAMESPACE}/streamingprefills"

    def create(self, body: dict[str, Any]) -> None:
        made = {
            "apiVersion": "stream2llm.io/v1alpha1",
            "kind": "StreamingPrefill",
            "metadata": {"name": NAME},
            "spec": body,
        }
        self.api.create(self.path, made)

    def resource(self) -> dict[str, Any]:
        return self.api.get(f"{self.path}/{NAME}")

    @property
    def wanted_pods(self) -> int:
        return int(self.resource()["spec"]["replicas"])

    @property
    def ready_pods(self) -> int:
        return sum(each.is_ready for each in self.node.pods("engine"))

    def condition(self, kind: str = "ScalingReady") -> tuple[str, str, str]:
        """Status, reason and message."""
        for each in self.resource().get("status", {}).get("conditions", ()):
            if each["type"] == kind:
                return each["status"], each["reason"], each["message"]
        return "", "", ""

    def scale(self, pods: int) -> None:
        """As `kubectl scale` does."""
        self.plane.kubectl("--namespace", NAMESPACE, "scale", f"spf/{NAME}", f"--replicas={pods}")

    def preemptions(self) -> float | None:
        """Memory preemptions a second, of all pods."""
        window = SPEED.seconds(120)
        return self.prometheus.value(f'sum(rate(stream2llm_preemptions_total{{cause="memory"}}[{window}s]))')

    def wait(self, what: str, holds: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
        """Returns once `holds()` is true. Raises AssertionError with what the loop says of itself."""
        self.timeline.mark(what)
        deadline_s = time.monotonic() + timeout_s
        while not self._holds(holds):
            assert self.load.failure is None, self.load.failure
            assert not self.node.troubles, self.node.troubles
            assert time.monotonic() < deadline_s, f"never happened: {what}\n{self.described()}"
            time.sleep(0.25)

    def holds_for(self, what: str, seconds: float, holds: Callable[[], object]) -> None:
        """Checks over a stretch of time that something stays as it is. Raises AssertionError."""
        self.timeline.mark(what)
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            assert holds(), f"no more: {what}\n{self.described()}"
            time.sleep(0.25)

    def described(self) -> str:
        """The last moments, and the status."""
        last = "\n".join(str(moment) for moment in self.timeline.moments[-20:])
        return f"{last}\n{json.dumps(self.resource().get('status'), indent=1)}\nlost: {self.load.lost}"

    def _holds(self, holds: Callable[[], object]) -> bool:
        try:
            return bool(holds())
        except (httpx.HTTPError, OSError):
            return False

    def follow(self) -> None:
        """What a cluster's DNS and Prometheus' discovery do: know where routers and pods are."""
        routers = [each for each in self.node.pods("router") if each.is_ready]
        names = "".join(f"{each.address} {NAME}-router.{NAMESPACE}.svc\n" for each in routers[:1])
        text = f"127.0.0.1 localhost\n{names}"
        if self._hosts.read_text() != text:
            # In place: the operator sees this very file.
            self._hosts.write_text(text)
        targets = [f"{each.address}:{each.port}" for each in self.node.pods("router")]
        for each in self.node.pods("engine"):
            is_unread = ALL in self.unread or each.name in self.unread
            targets.append(f"{each.address}:{DEAD_PORT if is_unread else each.port}")
        targets.append(f"127.0.0.1:{self.operator.metrics}")
        self.prometheus.write_targets(json.dumps([{"targets": targets}]))

    def _look(self, seconds: float) -> Moment:
        self.follow()
        resource = self.resource()
        found = {each["type"]: each for each in resource.get("status", {}).get("conditions", ())}
        scaling = found.get("ScalingReady", {})
        return Moment(
            seconds,
            self.load.open_streams,
            int(resource["spec"]["replicas"]),
            self.ready_pods,
            self.preemptions(),
            self.prometheus.value("stream2llm:pool_preemption_signal"),
            self.prometheus.value("stream2llm:pool_kv_cache_usage"),
            self.prometheus.value("stream2llm:pool_prefill_backlog_seconds"),
            f"{scaling.get('status', '')} {scaling.get('reason', '')}",
        )


@contextmanager
def running_plane(folder: Path) -> Iterator[tuple[ControlPlane, KubeApi]]:
    """API server and controllers, with our kinds and the pool's namespace."""
    with ControlPlane(folder / "kubernetes", controllers=True) as plane:
        api = KubeApi(plane)
        plane.kubectl("apply", "-f", str(ROOT / "crds"))
        plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(ROOT / "crds"))
        plane.kubectl("create", "namespace", NAMESPACE)
        claim = {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}}
        api.create(
            f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims", {"metadata": {"name": "weights"}, "spec": claim}
        )
        yield plane, api
        api.close()


@contextmanager
def running_loop(
    plane: ControlPlane, api: KubeApi, prometheus: Prometheus, redis_url: str, model: Path, folder: Path
) -> Iterator[PoolLoop]:
    """The rest of it. The resource is yet to be made."""
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    logs = folder / "logs"
    logs.mkdir()
    with ExitStack() as stack:
        launcher = Launcher()
        stack.callback(launcher.close)
        node = stack.enter_context(ProcessNode(api, NAMESPACE, launcher, logs, {"/model": model}))
        operator = RunningOperator(plane.kubeconfig, logs / "operator.log", prefix=_with_hosts(hosts))
        stack.enter_context(operator)
        load = stack.enter_context(Load(redis_url, PoolKeys(f"{NAMESPACE}/{NAME}")))
        loop = PoolLoop(plane, api, prometheus, node, operator, load, hosts)
        stack.enter_context(loop.timeline)
        yield loop


def _with_hosts(hosts: Path) -> list[str]:
    """A command in a mount namespace of its own, where names of the cluster lead to processes of this machine."""
    own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    script = 'mount --bind "$0" /etc/hosts && exec "$@"'
    return ["unshare", *own, "--mount", "sh", "-c", script, str(hosts)]
