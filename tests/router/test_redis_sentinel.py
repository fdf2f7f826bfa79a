"""A fail-over of Redis under a router: it goes on with the replica, and a pod tells of what has been lost."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry
from redis.exceptions import RedisError
from server_binaries import redis_binary
from waiting import wait_for

from stream2llm.connecting import connect, connect_async
from stream2llm.entries import Append, Open, encode
from stream2llm.keys import PoolKeys
from stream2llm_bench.demo.ports import free_port
from stream2llm_pod.serving.replies import Reply, ReplyEvent, ReplyWriter
from stream2llm_router.forwarding import Forwarder
from stream2llm_router.metrics import RouterMetrics

pytestmark = pytest.mark.redis
KEYS = PoolKeys("tests/sentinel")
TENANT = "default"
DESPITE = (RedisError, OSError)


class Watched:
    """A primary, a replica, and a sentinel that watches them."""

    def __init__(self, folder: Path) -> None:
        self.primary_port, self.replica_port, self.sentinel_port = (free_port() for _ in range(3))
        self.processes = {}
        for name, port in (("primary", self.primary_port), ("replica", self.replica_port)):
            (folder / name).mkdir()
            command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder / name)]
            command += ["--save", "", "--repl-diskless-sync-delay", "0"]
            if name == "replica":
                command += ["--replicaof", "127.0.0.1", str(self.primary_port)]
            self.processes[name] = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        replica = redis.Redis(port=self.replica_port, protocol=2)
        wait_for(
            "the replica syncs",
            lambda: replica.info("replication").get("master_link_status") == "up",
            despite=DESPITE,
        )
        configuration = folder / "sentinel.conf"
        configuration.write_text(
            f"port {self.sentinel_port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor main 127.0.0.1 {self.primary_port} 1\n"
            "sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 5000\n"
        )
        command = ["redis-server", str(configuration), "--sentinel"]
        self.processes["sentinel"] = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        sentinel = redis.Redis(port=self.sentinel_port, protocol=2)
        wait_for(
            "the sentinel sees the replica",
            lambda: sentinel.execute_command("SENTINEL", "REPLICAS", "main"),
            despite=DESPITE,
        )

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.sentinel_port}/main"

    def replica(self) -> redis.Redis:
        return redis.Redis(port=self.replica_port, protocol=2)

    def cut_off(self) -> None:
        """What is written from now on does not reach the replica, which believes that all is well."""
        self.replica().execute_command("REPLICAOF", "127.0.0.1", free_port())

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    redis_binary()
    running = Watched(tmp_path)
    yield running
    running.close()


def test_a_fail_over(watched: Watched) -> None:
    client = connect(watched.url)
    beat = {
        "incarnation": "i",
        "protocol": 1,
        "state": "ready",
        "capacity": {"max_open_streams": 10},
        "load": {"open_streams": 0, "backlog_tokens": 0, "kv_usage": 0.0},
        "time_ms": int(time.time() + 3_600) * 1000,
    }
    client.hset(KEYS.pods, "pod", json.dumps(beat))
    stop = threading.Event()
    router = Forwarder(
        connect(watched.url, retries=0), KEYS, RouterMetrics(KEYS.pool, CollectorRegistry()), block_ms=50
    )
    thread = threading.Thread(target=router.run, args=(stop,))
    thread.start()
    try:
        fields: dict[Any, Any] = encode(Open("s", prompt="{context}"))
        client.xadd(KEYS.ingress(TENANT), fields)
        wait_for("the open is forwarded", lambda: client.xlen(KEYS.entries(TENANT, "s")) == 1, despite=DESPITE)
        client.wait(1, 5_000)
        watched.processes["primary"].kill()
        watched.processes["primary"].wait()
        chunk: dict[Any, Any] = encode(Append("s", text="after", chunk="c"))
        wait_for("the replica takes over", lambda: client.xadd(KEYS.ingress(TENANT), chunk), despite=DESPITE)
        wait_for("the router goes on", lambda: watched.replica().xlen(KEYS.entries(TENANT, "s")) == 2, despite=DESPITE)
    finally:
        stop.set()
        thread.join()


def test_what_redis_has_lost_is_told(watched: Watched) -> None:
    """The reply had tokens that the replica never saw: the stream ends with `lost`, and not with a gap."""

    async def body() -> None:
        client = connect_async(f"redis://127.0.0.1:{watched.primary_port}")
        route = {"state": "finishing", "attempt": 1, "incarnation": "i", "open_id": "1-0", "seq": 2, "bytes": 0}
        await client.hset(KEYS.route(TENANT, "s"), mapping=route)  # type: ignore[misc]
        dropped: list[int] = []

        def send(writer: ReplyWriter, reply: Reply, index: int) -> None:
            writer.send(reply, ReplyEvent("token", f'{{"index":{index}}}', first_token=index, tokens=1))

        reply = Reply(TENANT, "s", 1, "i", "1-0", 60_000, lambda: dropped.append(1))
        writer = ReplyWriter(client, KEYS, pod="pod", retain_ms=60_000, max_events=100)
        task = asyncio.create_task(writer.run())
        send(writer, reply, 0)
        await writer.drained()
        await client.wait(1, 5_000)
        watched.cut_off()
        send(writer, reply, 1)
        await writer.drained()
        task.cancel()
        await client.aclose()
        watched.replica().execute_command("REPLICAOF", "NO", "ONE")
        client = connect_async(f"redis://127.0.0.1:{watched.replica_port}")
        writer = ReplyWriter(client, KEYS, pod="pod", retain_ms=60_000, max_events=100)
        task = asyncio.create_task(writer.run())
        send(writer, reply, 2)
        await writer.drained()
        task.cancel()
        await client.aclose()
        assert dropped == [1]

    asyncio.run(body())
    entries: Any = watched.replica().xrange(KEYS.reply(TENANT, "s"))
    assert [fields[b"event"] for _, fields in entries] == [b"token", b"error"]
    assert json.loads(entries[-1][1][b"data"])["code"] == "lost"
    assert watched.replica().hget(KEYS.route(TENANT, "s"), "state") == b"ended"
