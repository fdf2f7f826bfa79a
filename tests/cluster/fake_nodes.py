"""A control plane with hundreds of nodes that are none: kwok plays their kubelets, and no container ever runs.

usage: fake_nodes.py [--nodes N]      prints a line of JSON once the nodes are Ready, and ends when its stdin does
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import programs
from control_plane import ControlPlane

from stream2llm_bench.demo.ports import free_port

GPU = "nvidia.com/gpu"
PRODUCT = "NVIDIA-H200"
STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
"""What kwok lets happen to nodes and pods, as folders of files in its module."""
READY_S = 600


def stages() -> Path:
    """All stages in one file, fetched once into the cache. Raises programs.NotAvailable."""
    pin = programs.PINS["modules"]["kwok"]
    path = programs.cache() / f"kwok-stages-{pin['version']}.yaml"
    if not path.exists():
        folder = programs.module_folder(pin["module"], pin["version"]) / "kustomize" / "stage"
        files = [file for stage in STAGES for file in sorted((folder / stage).glob("*.yaml"))]
        texts = [file.read_text() for file in files if file.name != "kustomization.yaml"]
        partial = path.with_name(f".{path.name}")
        partial.write_text("---\n".join(texts))
        partial.rename(path)
    return path


class FakeNodes:
    """The control plane, and `count` Ready nodes with eight GPUs each. Start it as a context."""

    def __init__(self, work: Path, count: int, *, kubernetes: str = programs.NEWEST) -> None:
        self.plane = ControlPlane(work, kubernetes=kubernetes, controllers=True, scheduler=True)
        self._kwok, self._stages, self._count = programs.ensure("kwok")["kwok"], stages(), count

    def __enter__(self) -> FakeNodes:
        self.plane.__enter__()
        try:
            nodes = {"apiVersion": "v1", "kind": "List", "items": [_node(number) for number in range(self._count)]}
            self.plane.kubectl("create", "-f", "-", stdin=json.dumps(nodes))
            command = [str(self._kwok), "--kubeconfig", str(self.plane.kubeconfig), "--config", str(self._stages)]
            command += ["--manage-all-nodes=true", "--node-lease-duration-seconds=40"]
            self.plane.components.start("kwok", [*command, "--server-address", f"127.0.0.1:{free_port()}"])
            self.plane.components.wait("the nodes", lambda: self.ready() == self._count, READY_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.plane.__exit__()

    def ready(self) -> int:
        """How many nodes are."""
        path = '{range .items[*]}{.status.conditions[?(@.type=="Ready")].status}{"\\n"}{end}'
        return self.plane.kubectl("get", "nodes", "-o", f"jsonpath={path}").stdout.split().count("True")


def _node(number: int) -> dict[str, Any]:
    name = f"fake-{number:03}"
    amounts = {"cpu": "128", "memory": "1Ti", "pods": "110", GPU: "8"}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", f"{GPU}.product": PRODUCT}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=500, help="how many (default 500)")
    arguments = parser.parse_args()
    # Ctrl-C is for whoever started this, and closes our stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    started_s = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder, FakeNodes(Path(folder), arguments.nodes) as nodes:
            programs.say(f"{arguments.nodes} nodes are Ready, {time.monotonic() - started_s:.0f} s")
            kubectl = str(nodes.plane.paths["kubectl"])
            found = {"kubeconfig": str(nodes.plane.kubeconfig), "audit_log": f"{folder}/audit.log", "kubectl": kubectl}
            print(json.dumps(found), flush=True)
            sys.stdin.read()
    except (programs.NotAvailable, RuntimeError, TimeoutError) as error:
        print(f"cluster: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
