"""`make cluster`: a real one-node Kubernetes with our chart and a pool of CPU pods, until Ctrl-C.

usage: up.py [--kubernetes VERSION]      needs Linux and root, no Docker and no image registry

Everything is in build/cluster of the checkout and in a network of its own; all of it is gone when the command ends.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import cpu_pool
import images
import network
import programs
import vllm_environment
from chart import CHART, helm
from node import CannotRun, RealCluster
from programs import ROOT, NotAvailable, say

from stream2llm_bench.demo.model import ensure_model
from stream2llm_bench.failing import Unavailable

WORK = ROOT / "build" / "cluster"
NAMESPACE, NAME = "demo", "small"
READY_S = 900


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kubernetes", default=programs.NEWEST, help=f"version (default {programs.NEWEST})")
    arguments = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        run(arguments.kubernetes, stop)
    except (CannotRun, NotAvailable, Unavailable, network.NetworkError, RuntimeError, TimeoutError) as error:
        print(f"cluster: error: {error}", file=sys.stderr)
        return 1
    return 0


def run(kubernetes: str, stop: threading.Event) -> None:
    """Returns after `stop` is set and everything is gone. Raises what stands in the way."""
    if os.geteuid() != 0:
        raise CannotRun("a real node needs root: run `sudo make cluster`, or use kind or another cluster of yours")
    model = ensure_model(say)
    for file in model.iterdir():
        # Pods run as a user of their own.
        file.chmod(0o644)
    packages, archive = vllm_environment.folder(), images.archive()
    say(f"starting Kubernetes {kubernetes}")
    started_s = time.monotonic()
    with RealCluster(WORK, kubernetes=kubernetes, images=(archive,)) as cluster:
        say(f"the node is Ready, {time.monotonic() - started_s:.0f} s; installing the chart")
        install(cluster)
        make_pool(cluster, packages, model)
        if wait_ready(cluster, stop):
            say(f"the pool is Ready, {time.monotonic() - started_s:.0f} s")
            print(what_next(cluster), flush=True)
            stop.wait()
        say("stopping")
    say("all of it is gone")


def install(cluster: RealCluster) -> None:
    """Our chart, with a Valkey, in a restricted namespace. Returns when its pods are Ready."""
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(cpu_pool.namespace(cpu_pool.SYSTEM_NAMESPACE)))
    helm(
        cluster.kubeconfig,
        *("install", cpu_pool.RELEASE, str(CHART), "--namespace", cpu_pool.SYSTEM_NAMESPACE),
        *("--wait", "--timeout", "300s"),
        values=cpu_pool.chart_values(),
    )


def make_pool(cluster: RealCluster, packages: Path, model: Path) -> None:
    """A pool of one CPU pod with the demo's model."""
    spec = cpu_pool.spec(scheduling={"preemption": "recompute"})
    spec["model"] |= {"name": NAME, "maxLengthTokens": 4096}
    # Nothing is chosen by a profile, and measuring this model on a CPU takes minutes.
    del spec["costProfile"]
    objects = [cpu_pool.namespace(NAMESPACE), *cpu_pool.volumes(NAMESPACE, packages, model)]
    objects.append(cpu_pool.resource(NAME, spec, NAMESPACE))
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


def wait_ready(cluster: RealCluster, stop: threading.Event) -> bool:
    """Tells what the pool waits for. False if it was told to stop. Raises TimeoutError."""
    deadline_s, told = time.monotonic() + READY_S, ""
    while not stop.wait(1):
        found = json.loads(cluster.kubectl("--namespace", NAMESPACE, "get", "spf", NAME, "-o", "json"))
        conditions = {each["type"]: each for each in found.get("status", {}).get("conditions", ())}
        ready = conditions.get("Ready", {"status": "Unknown", "reason": "Pending", "message": ""})
        if ready["status"] == "True":
            return True
        words = f"{ready['reason']}: {ready['message']}".removesuffix(": ")
        if words != told:
            say(f"the pool is not ready yet: {words}")
            told = words
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the pool is not ready after {READY_S} s: {words}; logs are in {WORK}")
    return False


def what_next(cluster: RealCluster) -> str:
    """What a person types now, in another terminal."""
    redis = cluster.kubectl(
        *("--namespace", cpu_pool.SYSTEM_NAMESPACE, "get", "service", f"{cpu_pool.RELEASE}-valkey"),
        *("-o", "jsonpath={.spec.clusterIP}"),
    )
    kubectl = cluster.plane.paths["kubectl"]
    return f"""
In another terminal, in this folder:

  export KUBECONFIG={cluster.kubeconfig} PATH={kubectl.parent}:$PATH
  kubectl get spf --namespace {NAMESPACE}
  kubectl describe spf {NAME} --namespace {NAMESPACE}

  export STREAM2LLM_REDIS=redis://{redis}:6379 STREAM2LLM_POOL={NAMESPACE}/{NAME}
  .venv/bin/stream2llm ask "How do I report a vulnerability?" --doc SECURITY.md
  kubectl scale spf/{NAME} --replicas=2 --namespace {NAMESPACE}

Addresses of Services and pods can be reached from this machine. Ctrl-C here ends the cluster and removes all of it.
"""


if __name__ == "__main__":
    sys.exit(main())
