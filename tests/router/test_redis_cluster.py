"""Two pools on a real cluster of three nodes, each in a slot of its own, through the move of a slot."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from prometheus_client import CollectorRegistry
from redis.exceptions import RedisError
from server_binaries import redis_binary
from waiting import wait_for

from stream2llm.client import Client
from stream2llm.connecting import connect
from stream2llm.entries import Append, Open, encode
from stream2llm.keys import PoolKeys
from stream2llm_bench.demo.ports import free_port
from stream2llm_router.forwarding import Forwarder
from stream2llm_router.metrics import RouterMetrics

pytestmark = pytest.mark.redis
TENANT = "default"
POOLS = ("tests/one", "tests/two")
CHUNKS = 300
DESPITE = (RedisError,)


class Cluster:
    """Three masters, all slots among them."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.folder = folder
        self.ports = [free_port() for _ in range(3)]
        self.processes = []
        for port in self.ports:
            home = folder / str(port)
            home.mkdir()
            command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(home), "--save", ""]
            command += ["--cluster-enabled", "yes", "--cluster-node-timeout", "5000", "--appendonly", "no"]
            command += ["--logfile", str(home / "log")]
            self.processes.append(subprocess.Popen(command))
        wait_for("the nodes answer", self._answer, despite=DESPITE)
        for i, (low, high) in enumerate(((0, 5460), (5461, 10922), (10923, 16383))):
            self.node(i).execute_command("CLUSTER", "ADDSLOTSRANGE", low, high)
            self.node(0).execute_command("CLUSTER", "MEET", "127.0.0.1", self.ports[i])
        wait_for("the cluster forms", lambda: all(self._whole(i) for i in range(3)), despite=DESPITE)

    def _answer(self) -> bool:
        for port, process in zip(self.ports, self.processes, strict=True):
            log = self.folder / str(port) / "log"
            assert process.poll() is None, f"the node on port {port} ended: {log.read_text()}"
        return all(self.node(i).ping() for i in range(3))

    def _whole(self, i: int) -> bool:
        info = self.node(i).execute_command("CLUSTER", "INFO")
        text = info.decode() if isinstance(info, bytes) else str(info)
        return ("cluster_state:ok" in text and "cluster_known_nodes:3" in text) or (
            isinstance(info, dict) and info.get("cluster_state") == "ok" and info.get("cluster_known_nodes") == "3"
        )

    def node(self, i: int) -> redis.Redis:
        return redis.Redis(port=self.ports[i], protocol=2, socket_timeout=5)

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def slot(self, key: str) -> int:
        return int(self.node(0).execute_command("CLUSTER", "KEYSLOT", key))

    def owner(self, key: str) -> int:
        slot = self.slot(key)
        return next(i for i, high in enumerate((5460, 10922, 16383)) if slot <= high)

    def name(self, i: int) -> str:
        name = self.node(i).execute_command("CLUSTER", "MYID")
        return name.decode() if isinstance(name, bytes) else str(name)

    def move(self, key: str, target: int, pause_s: float) -> None:
        """Move a slot key by key, as redis-cli does, slowly."""
        slot, source = self.slot(key), self.owner(key)
        self.node(target).execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.name(source))
        self.node(source).execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.name(target))
        while keys := self.node(source).execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1):
            moved = keys[0].decode() if isinstance(keys[0], bytes) else keys[0]
            self.node(source).execute_command("MIGRATE", "127.0.0.1", self.ports[target], moved, 0, 5000)
            time.sleep(pause_s)
        for i in (target, source, *(set(range(3)) - {target, source})):
            self.node(i).execute_command("CLUSTER", "SETSLOT", slot, "NODE", self.name(target))

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    binary = redis_binary()
    running = Cluster(binary, tmp_path)
    yield running
    running.close()


def register_pod(client: redis.Redis, keys: PoolKeys) -> None:
    beat = {
        "incarnation": "i",
        "protocol": 1,
        "state": "ready",
        "capacity": {"max_open_streams": 1_000},
        "load": {"open_streams": 0, "backlog_tokens": 0, "kv_usage": 0.0},
        "time_ms": int(time.time() + 3_600) * 1000,
    }
    client.hset(keys.pods, "pod", json.dumps(beat))


def test_two_pools_and_a_slot_that_moves_under_load(cluster: Cluster) -> None:
    pools = [PoolKeys(name) for name in POOLS]
    assert cluster.slot(pools[0].pods) != cluster.slot(pools[1].pods)
    stop = threading.Event()
    threads = []
    for keys in pools:
        wait_for(
            "the pool can be written to",
            lambda keys=keys: register_pod(connect(cluster.url), keys) is None,
            despite=DESPITE,
        )
        router = Forwarder(
            connect(cluster.url, retries=0), keys, RouterMetrics(keys.pool, CollectorRegistry()), block_ms=50
        )
        threads.append(threading.Thread(target=router.run, args=(stop,)))
        threads[-1].start()
    move = threading.Thread(target=cluster.move, args=(pools[0].pods, (cluster.owner(pools[0].pods) + 1) % 3, 0.3))
    sent: dict[str, list[str]] = {keys.pool: [] for keys in pools}
    clients = {keys.pool: connect(cluster.url, retries=0) for keys in pools}
    try:
        for number in range(CHUNKS):
            for keys in pools:
                entry = Append("s", text=f"t{number}") if number else Open("s", prompt="{context}")
                # A try that fails in a way that leaves open whether it was written would be sent with a chunk id.
                wait_for(
                    "the producer cannot write",
                    lambda keys=keys, entry=entry: clients[keys.pool].xadd(keys.ingress(TENANT), encode(entry)),
                    despite=DESPITE,
                )
                sent[keys.pool].append(f"t{number}" if number else "")
            if number == CHUNKS // 3:
                move.start()
        move.join()
        for keys in pools:
            client = connect(cluster.url)
            wait_for(
                "no entries are left",
                lambda keys=keys, client=client: client.xlen(keys.ingress(TENANT)) == 0,
                despite=DESPITE,
            )
            entries = [fields for _, fields in client.xrange(keys.entries(TENANT, "s"))]
            log = [fields for _, fields in client.xrange(keys.log("pod", "i"))]
            assert [fields.get(b"text", b"").decode() for fields in entries] == sent[keys.pool]
            assert [fields.get(b"text", b"").decode() for fields in log] == sent[keys.pool]
            assert [int(fields[b"seq"]) for fields in entries] == list(range(1, CHUNKS + 1))
        with pytest.raises(redis.exceptions.MovedError):
            cluster.node(cluster.owner(pools[0].pods)).hgetall(pools[0].pods)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_the_client_library_on_a_cluster(cluster: Cluster) -> None:
    with Client(cluster.url, pool=POOLS[1]) as client:
        stream = client.open(prompt="{context}")
        stream.append("text")
        stream.finish()
    keys = PoolKeys(POOLS[1])
    node = cluster.node(cluster.owner(keys.pods))
    assert [fields[b"op"] for _, fields in node.xrange(keys.ingress(TENANT))] == [b"open", b"append", b"finish"]
