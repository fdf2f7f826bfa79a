"""A real router process is killed before and after each of its commands; another router does the rest.

A proxy in front of Redis counts the commands. What is to be done is everything that a router does: forwarding opens,
chunks, a cancel and what is wrong, giving a held stream to a pod, moving a stream off a pod that is gone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from lone_router import KEYS, TENANT, Pool
from redis_proxy import AFTER, BEFORE, PASS, RedisProxy, counting

from stream2llm.entries import Append, Cancel, Finish, Open
from stream2llm_bench.demo.ports import free_port

pytestmark = [pytest.mark.redis, pytest.mark.e2e]
WAIT_S = 600.0
OPEN_WAIT_S = 3600
"""Longer than anything here: on a slow machine the stream that waits for a pod must not be given up."""
NEW = {f"new-{i}": [f"{i}.{j}" for j in range(4)] for i in range(3)}
"""Streams that the router under test opens, with their chunks."""
ALL = [*NEW, "held", "moved", "gone"]
FEW_POINTS = 4


def prepare(client: redis.Redis) -> None:
    """A full ingress, a stream that waits for a pod, and two of a pod that is gone, one of them cancelled."""
    client.flushall()
    pool = Pool(client, open_wait_ms=1000 * OPEN_WAIT_S)
    pool.beat("old", time_ms=0)
    pool.forwarder.turn()
    pool.open("held")
    assert pool.place("held")[0] == "held"
    pool.beat("old")
    client.zadd("elsewhere", {"held": client.zscore(KEYS.held(TENANT), "held") or 0})
    client.delete(KEYS.held(TENANT))
    pool.open("moved", "gone")
    assert [pool.place(stream)[1] for stream in ("moved", "gone")] == ["old", "old"]
    client.rename("elsewhere", KEYS.held(TENANT))
    pool.send(Append("moved", text="m.0"), Append("held", text="h.0"), Cancel("gone"))
    pool.turn()
    client.hdel(KEYS.pods, "old")
    for stream in NEW:
        pool.send(Open(stream, prompt="{context}"))
    for i in range(4):
        for stream, texts in NEW.items():
            pool.send(Append(stream, text=texts[i]))
        if i == 1:
            client.xadd(KEYS.ingress(TENANT), {"stream": "new-0", "op": "shout"})
            client.xadd(KEYS.ingress(TENANT), {"stream": "nobody", "op": "finish"})
            pool.send(Append("moved", text="m.1"), Append("held", text="h.1"))
    pool.send(Finish("new-1"), Cancel("new-2"))
    pool.beat("pod", capacity={"max_open_streams": 1_000}, age_ms=-3_600_000)
    lapse(client)


def lapse(client: redis.Redis) -> None:
    """What some seconds of silence do to a router's lease and its place among the routers."""
    client.delete(KEYS.lease(TENANT), KEYS.routers)


def settled(client: redis.Redis) -> bool:
    left = client.xlen(KEYS.ingress(TENANT)), client.zcard(KEYS.held(TENANT)), client.scard(KEYS.gone)
    return left == (0, 0, 0) and client.smembers(KEYS.incarnations) == {b"pod:1"}


def wrong(client: redis.Redis) -> list[str]:
    """What is not as if one router had done all of it undisturbed."""
    found = []
    texts = {**NEW, "held": ["h.0", "h.1"], "moved": ["m.0", "m.1"]}
    log: Any = client.xrange(KEYS.log("pod", "1"))
    for stream, expected in texts.items():
        entries = [fields for _, fields in client.xrange(KEYS.entries(TENANT, stream))]
        route = client.hgetall(KEYS.route(TENANT, stream))
        if [int(entry[b"seq"]) for entry in entries] != list(range(1, len(entries) + 1)):
            found.append(f"{stream}: numbers {[entry[b'seq'] for entry in entries]}")
        if [entry[b"text"].decode() for entry in entries if b"text" in entry] != expected:
            found.append(f"{stream}: entries {entries}")
        if int(route[b"seq"]) != len(entries) or route[b"pod"] != b"pod":
            found.append(f"{stream}: route {route}")
        # What the pod applies: the entries up to where its adoption says, then what its log brings.
        own = [fields for _, fields in log if fields[b"stream"].decode() == stream]
        adopts = [fields for fields in own if fields[b"op"] == b"adopt"]
        if len(adopts) != 1 or adopts[0][b"attempt"] != route[b"attempt"]:
            found.append(f"{stream}: adopted {adopts}, route {route}")
            continue
        upto = int(adopts[0][b"upto"])
        seqs = [int(fields[b"seq"]) for fields in own if fields[b"op"] != b"adopt"]
        if seqs != list(range(upto + 1, len(entries) + 1)) or own[0] != adopts[0]:
            found.append(f"{stream}: adopted up to {upto}, then {seqs}")
    gone: Any = [fields for _, fields in client.xrange(KEYS.reply(TENANT, "gone"))]
    if [fields[b"event"] for fields in gone] != [b"done"]:
        found.append(f"the cancelled stream: {gone}")
    errors = [json.loads(fields[b"data"])["code"] for _, fields in client.xrange(KEYS.reply(TENANT, "new-0"))]
    rejected = [fields[b"code"] for _, fields in client.xrange(KEYS.rejected(TENANT))]
    if (errors, rejected) != (["unknown_op"], [b"unknown_stream"]):
        found.append(f"told {errors}, rejected {rejected}")
    usage = client.hget(KEYS.usage(TENANT), "streams")
    assigned = sorted(client.hkeys(KEYS.assigned("pod", "1")))
    if usage != b"5" or assigned != sorted(f"{TENANT}:{stream}".encode() for stream in texts):
        found.append(f"usage {usage!r}, assigned {assigned}")
    if client.exists(KEYS.assigned("old", "1"), KEYS.log("old", "1")):
        found.append("the gone pod has left something")
    return found


def run_router(server: Any, decide: Callable[[list[bytes]], str], until: Callable[[], bool]) -> None:
    """A router behind the proxy, until it is killed by what `decide` says, or `until`."""
    started = threading.Event()
    processes: list[subprocess.Popen[bytes]] = []

    def kill() -> None:
        started.wait()
        processes[0].kill()
        processes[0].wait()

    proxy = RedisProxy(server.port, decide, kill)
    command = [sys.executable, "-m", "stream2llm.commands.main", "route", "--redis", proxy.url, "--pool", KEYS.pool]
    command += ["--http", f"127.0.0.1:{free_port()}", "--open-wait-seconds", str(OPEN_WAIT_S)]
    processes.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
    started.set()
    try:
        give_up_s = time.monotonic() + WAIT_S
        while processes[0].poll() is None and not until():
            assert time.monotonic() < give_up_s, "the router has neither finished nor come to its end"
            time.sleep(0.01)
    finally:
        kill()
        proxy.close()


def commands_of_a_whole_run(server: Any, client: redis.Redis) -> list[str]:
    prepare(client)
    seen: list[str] = []
    run_router(server, counting(0, PASS, seen), lambda: settled(client))
    assert wrong(client) == []
    return seen


def crash_at(server: Any, client: redis.Redis, at: int, verdict: str) -> list[str]:
    """What is wrong after a crash at that command and the work of another router."""
    prepare(client)
    seen: list[str] = []
    # The number of commands of a run differs by how often it looks round: it may be through before the last of them.
    run_router(server, counting(at, verdict, seen), lambda: False)
    assert len(seen) == at
    lapse(client)
    rest = Pool(client, open_wait_ms=1000 * OPEN_WAIT_S)
    give_up_s = time.monotonic() + WAIT_S
    while not settled(client):
        assert time.monotonic() < give_up_s, "the other router does not finish"
        rest.turn()
    found = [f"{verdict} command {at} ({seen[-1]}): {problem}" for problem in wrong(client)]
    print(f"{verdict} {at} ({seen[-1]}): {'; '.join(found) or 'nothing lost'}", flush=True)
    return found


@pytest.mark.parametrize("verdict", [BEFORE, AFTER])
def test_a_crash_at_some_points(redis_server: Any, verdict: str) -> None:
    with redis_server.client() as client:
        whole = commands_of_a_whole_run(redis_server, client)
        scripts = [at for at, name in enumerate(whole, 1) if name == "EVALSHA"]
        points = scripts[:: -(-len(scripts) // FEW_POINTS)]
        assert [problem for at in points for problem in crash_at(redis_server, client, at, verdict)] == []


@pytest.mark.long
@pytest.mark.parametrize("verdict", [BEFORE, AFTER])
def test_a_crash_at_every_point(server: Any, verdict: str) -> None:
    with server.client() as client:
        whole = commands_of_a_whole_run(server, client)
        print(f"\n{len(whole)} commands: {' '.join(whole)}")
        points = range(1, len(whole) + 1)
        assert [problem for at in points for problem in crash_at(server, client, at, verdict)] == []
