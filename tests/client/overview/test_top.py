"""`stream2llm top` against a real server."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from typing import Any

import pytest
import redis

from stream2llm import Client
from stream2llm.keys import PoolKeys

pytestmark = pytest.mark.redis
COMMAND = [sys.executable, "-m", "stream2llm.commands.main", "top"]
KEYS = PoolKeys("team/llama")


def beat(client: redis.Redis, name: str) -> None:
    seconds, _ = client.time()
    load = {"open_streams": 2, "backlog_tokens": 50, "kv_usage": 0.5}
    document: dict[str, Any] = {
        "incarnation": "i",
        "protocol": 1,
        "state": "ready",
        "load": load,
        "time_ms": seconds * 1000,
    }
    document["capacity"] = {"max_open_streams": 8}
    client.hset(KEYS.pods, name, json.dumps(document))


@pytest.fixture
def pool(server: Any) -> Any:
    client = redis.Redis(port=server.port, protocol=2)
    beat(client, "pod-a")
    client.sadd(KEYS.tenants, "acme", "globex")
    client.xadd(KEYS.ingress("acme"), {"op": "x"})
    client.zadd(KEYS.held("globex"), {"s": 1})
    yield server
    client.flushall()


def options(port: int) -> list[str]:
    return ["--redis", f"redis://127.0.0.1:{port}", "--pool", KEYS.pool]


def test_one_look_as_json(pool: Any) -> None:
    result = subprocess.run(
        [*COMMAND, "--once", "--json", *options(pool.port)], capture_output=True, text=True, check=True
    )
    (look,) = map(json.loads, result.stdout.splitlines())
    assert look["pool"] == "team/llama"
    (pod,) = look["pods"]
    assert (pod["name"], pod["state"], pod["open_streams"], pod["kv_usage"]) == ("pod-a", "ready", 2, 0.5)
    assert look["tenants"] == [
        {"name": "acme", "lag_entries": 1, "waiting_streams": 0},
        {"name": "globex", "lag_entries": 0, "waiting_streams": 1},
    ]


def test_without_a_terminal_it_looks_once(pool: Any) -> None:
    result = subprocess.run([*COMMAND, *options(pool.port)], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.startswith("pool team/llama: 1 of 1 pods ready, 2 open streams, 1 waiting\n")
    assert "\x1b" not in result.stdout


def test_in_a_terminal_it_goes_on_until_interrupted(pool: Any) -> None:
    ours, theirs = pty.openpty()
    command = [*COMMAND, "--interval-seconds", "0.1", *options(pool.port)]
    process = subprocess.Popen(command, stdout=theirs, stdin=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    seen, give_up_s = b"", time.monotonic() + 120
    try:
        while seen.count(b"\x1b[H\x1b[J") < 3:
            assert time.monotonic() < give_up_s, seen
            if select.select([ours], [], [], 1.0)[0]:
                seen += os.read(ours, 65_536)
        process.send_signal(2)
        assert process.wait(60) == 130
    finally:
        process.kill()
        os.close(ours)


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "x", "3601"])
def test_a_bad_interval_is_refused(interval: str) -> None:
    result = subprocess.run([*COMMAND, "--interval-seconds", interval], capture_output=True, text=True)
    assert result.returncode == 2
    assert f"argument --interval-seconds: '{interval}' must be a number from 0.1 to 3600" in result.stderr


def test_a_key_of_a_foreign_type_hurts_only_its_own_figure(pool: Any) -> None:
    client = redis.Redis(port=pool.port, protocol=2)
    client.set(KEYS.ingress("globex"), "not a stream")
    with Client(f"redis://127.0.0.1:{pool.port}", pool=KEYS.pool) as ours:
        look = ours.overview()
    assert [(tenant.name, tenant.lag_entries) for tenant in look.tenants] == [("acme", 1), ("globex", 0)]
