"""One real node: containerd, kubelet, kube-proxy and CoreDNS as plain processes. Needs Linux and root.

Its sockets and its network have fixed places, so a machine has one at a time; a second one is refused.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO

import leftovers
import network
import node_configuration
import node_packages
import programs
from control_plane import ControlPlane, Surroundings

NODE = "node-1"
RUN = Path("/run/stream2llm-cluster")
SOCKET = RUN / "containerd.sock"
CGROUP = "stream2llm-cluster"
PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr", "crictl", "coredns")
STOP_PODS_S = 60


class CannotRun(Exception):
    """Why there can be no node here."""


class RealCluster:
    """A control plane with one real node. Start it as a context: seconds until the node is Ready, and seconds to stop.

    images: archives that the node gets.
    """

    def __init__(self, work: Path, *, kubernetes: str = programs.NEWEST, images: tuple[Path, ...] = ()) -> None:
        if os.geteuid() != 0:
            raise CannotRun("a real node needs root: containers, control groups and a network of their own")
        node_packages.ensure()
        self.work, self._images = work, images
        self._paths = programs.ensure(*PROGRAMS, "kubelet", "kube-proxy", kubernetes=kubernetes)
        surroundings = Surroundings(network.NODE_IP, network.PREFIX, has_node=True)
        self.plane = ControlPlane(
            work, kubernetes=kubernetes, controllers=True, scheduler=True, surroundings=surroundings
        )
        self._lock: IO[str] | None = None

    @property
    def kubeconfig(self) -> Path:
        return self.plane.kubeconfig

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """What kubectl prints, as the administrator. Raises RuntimeError with what it said."""
        return self.plane.kubectl(*arguments, stdin=stdin).stdout

    def __enter__(self) -> RealCluster:
        self._lock = _only_one()
        try:
            self._sweep()
            shutil.rmtree(self.work, ignore_errors=True)
            network.create()
            leftovers.make_control_groups(CGROUP)
            self.plane.__enter__()
            self._start_node()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            # The kubelet first: it would start again what is removed next.
            for name in ("coredns", "kube-proxy", "kubelet"):
                self.plane.stop_one(name)
            if "containerd" in self.plane.components.running:
                self._remove_pods()
            self.plane.__exit__()
            self._sweep()
        finally:
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def import_images(self, archive: Path) -> None:
        """Gives the node what an archive of images holds, under the names in it."""
        _run(*self._ctr, "images", "import", "--local", str(archive))

    def offer_gpus(self, count: int, product: str) -> None:
        """Makes the node look as if it had GPUs: pods get nothing but are scheduled so. 0 takes them away."""
        self.kubectl("label", "--overwrite", "node", NODE, f"nvidia.com/gpu.product={product}")
        patch = {"status": {"capacity": {"nvidia.com/gpu": str(count) if count else None}}}
        self.kubectl("patch", "node", NODE, "--subresource=status", "--type=merge", "-p", json.dumps(patch))

    @property
    def _ctr(self) -> tuple[str, ...]:
        return str(self._paths["ctr"]), "--address", str(SOCKET), "--namespace", "k8s.io"

    def _start_node(self) -> None:
        RUN.mkdir(exist_ok=True)
        node_configuration.write(self.work, RUN, CGROUP, NODE)
        shims = str(self._paths["containerd"].parent)
        self._start("containerd", "--config", f"{self.work}/containerd.toml", path=shims)
        self._wait("containerd", lambda: bool(_run(*self._ctr, "version")))
        for archive in self._images:
            self.import_images(archive)
        self.kubectl("apply", "-f", "-", stdin=json.dumps(node_configuration.objects()))
        self._start(
            "kubelet",
            f"--kubeconfig={self.work}/kubelet.conf",
            f"--config={self.work}/kubelet.yaml",
            f"--root-dir={self.work}/kubelet",
            f"--cert-dir={self.work}/kubelet-pki",
            f"--hostname-override={NODE}",
            f"--node-ip={network.NODE_IP}",
        )
        self._start("kube-proxy", f"--config={self.work}/kube-proxy.yaml")
        self._start("coredns", "-conf", f"{self.work}/Corefile")
        ready = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
        self._wait("the node", lambda: self.kubectl("get", "node", NODE, "-o", ready) == "True")
        # Without it no pod is accepted.
        self._wait("its ServiceAccount", lambda: bool(self.kubectl("get", "serviceaccount", "default")))

    def _start(self, name: str, *arguments: str, path: str = "") -> None:
        self.plane.components.start(name, [str(self._paths[name]), *arguments], path=path)

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        self.plane.components.wait(what, ready)

    def _remove_pods(self) -> None:
        crictl = [str(self._paths["crictl"]), "--runtime-endpoint", f"unix://{SOCKET}"]
        try:
            subprocess.run([*network.PREFIX, *crictl, "rmp", "-a", "-f"], capture_output=True, timeout=STOP_PODS_S)
        except subprocess.TimeoutExpired:
            programs.say(f"pods did not stop within {STOP_PODS_S} s; they are killed")

    def _sweep(self) -> None:
        leftovers.sweep(CGROUP, str(SOCKET), (self.work, RUN))
        network.remove()
        shutil.rmtree(RUN / "containerd", ignore_errors=True)


def _only_one() -> IO[str]:
    """The lock that says that a node runs on this machine. Raises CannotRun while another one does."""
    RUN.mkdir(exist_ok=True)
    lock = (RUN / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise CannotRun("another cluster of ours runs on this machine: end it first, there can be only one") from None
    return lock


def _run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}: {result.stderr.strip()[-2000:]}")
    return result.stdout
