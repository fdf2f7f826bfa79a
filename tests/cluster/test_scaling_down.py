"""`kubectl scale` down takes the pod that nobody uses. Stand-ins for the pods say in Redis what real ones would."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import cpu_pool
import pytest
from images import reference
from pools import NAME, Pool
from waiting import wait_for

pytestmark = pytest.mark.kubernetes

COST = "controller.kubernetes.io/pod-deletion-cost"


@contextmanager
def heartbeats(pool: Pool, streams: dict[str, int]) -> Iterator[None]:
    """Heartbeats of pods with so many open streams each, as long as the context is open."""
    key, stop = f"{pool.key_prefix}:pods", threading.Event()

    def beat() -> None:
        while not stop.wait(1):
            seconds, micros = pool.redis_cli("TIME").split()
            for name, count in streams.items():
                load = {"open_streams": count, "backlog_tokens": 0, "kv_usage": 0.0}
                known = {"incarnation": "a", "protocol": 1, "fingerprint": "f", "state": "ready"}
                known |= {"capacity": {"max_open_streams": 8}, "load": load}
                known["time_ms"] = int(seconds) * 1000 + int(micros) // 1000
                pool.redis_cli("HSET", key, name, json.dumps(known, separators=(",", ":")))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_the_idle_pod_goes_first(pool: Pool) -> None:
    spec = cpu_pool.spec(scheduling={"preemption": "recompute"}, costProfile={"measure": {}}, replicas=3)
    spec["engine"] |= {"image": reference("idle"), "versionOverride": "0.32.0"}
    pool.apply(spec)
    wait_for("three pods run", lambda: [pod["status"]["phase"] for pod in pool.pods()] == ["Running"] * 3, 180)
    wait_for("a router is ready", lambda: pool.condition("RouterReady")[0] == "True", 180)
    names = sorted(pod["metadata"]["name"] for pod in pool.pods())
    busy = dict(zip(names, (5, 0, 2), strict=True))
    with heartbeats(pool, busy):
        address = pool.kubectl("get", "service", f"{NAME}-router", "-o", "jsonpath={.spec.clusterIP}")

        def known() -> bool:
            pods = pool.fetch(f"http://{address}:8080/status.json")["pods"]
            return {name: pod["open_streams"] for name, pod in pods.items()} == busy

        wait_for("the router knows them", known, 120)
        pool.kubectl("scale", f"spf/{NAME}", "--replicas=2")
        wait_for("two are left", lambda: len(pool.pods()) == 2, 120)
        left = {pod["metadata"]["name"]: pod["metadata"]["annotations"][COST] for pod in pool.pods()}
        assert left == {names[0]: "5", names[2]: "2"}
