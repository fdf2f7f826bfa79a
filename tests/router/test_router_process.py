"""The router as a process: killed, stopped and resumed, its server restarted, fed with poison, asked over HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from waiting import wait_for

from stream2llm.entries import Append, Finish, Open, encode
from stream2llm.errors import ErrorCode
from stream2llm.keys import PoolKeys
from stream2llm_bench.demo.ports import free_port
from stream2llm_router.assigning import Lack

pytestmark = pytest.mark.redis
KEYS = PoolKeys("tests/process")
TENANT = "default"
POD, INCARNATION = "pod-0", "aa"
WAIT_S = 60.0
STREAMS = [f"s{i}" for i in range(8)]


class Router:
    """One `stream2llm route` process."""

    def __init__(self, url: str, folder: Path, *arguments: str) -> None:
        self.port = free_port()
        self.errors = folder / f"router-{self.port}.txt"
        command = [sys.executable, "-m", "stream2llm.commands.main", "route", "--redis", url, "--pool", KEYS.pool]
        command += ["--http", f"127.0.0.1:{self.port}", *arguments]
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(command, stdout=errors, stderr=errors)

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except (urllib.error.URLError, ConnectionError):
            return 0, b""

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def said(self) -> str:
        return self.errors.read_text()


@pytest.fixture
def start(server: Any, tmp_path: Path) -> Iterator[Callable[..., Router]]:
    routers: list[Router] = []

    def begin(*arguments: str, url: str | None = None) -> Router:
        routers.append(Router(url or server.url, tmp_path, *arguments))
        return routers[-1]

    yield begin
    for router in routers:
        router.process.kill()
        router.process.wait()


@pytest.fixture
def client(server: Any) -> Iterator[redis.Redis]:
    with server.client() as connection:
        yield connection


def beat(client: redis.Redis) -> None:
    """A pod whose heartbeat does not lapse while a test runs."""
    seconds, _ = client.time()
    heartbeat = {
        "incarnation": INCARNATION,
        "protocol": 1,
        "state": "ready",
        "models": ["m"],
        "capacity": {"max_open_streams": 1_000_000},
        "load": {"open_streams": 0, "backlog_tokens": 0, "kv_usage": 0.0},
        "time_ms": (seconds + 3_600) * 1000,
    }
    client.hset(KEYS.pods, POD, json.dumps(heartbeat))


def lapse(client: redis.Redis) -> None:
    """What five seconds of silence do to a lease."""
    client.delete(KEYS.lease(TENANT))


class Producer:
    """Writes numbered chunks to all streams until told to stop; remembers what was acknowledged."""

    def __init__(self, server: Any) -> None:
        self.acknowledged: dict[str, list[str]] = defaultdict(list)
        self.unsure: set[str] = set()
        self._server, self._stop = server, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        with redis.Redis(port=self._server.port, protocol=2, retry=None, socket_timeout=5) as client:
            for stream in STREAMS:
                client.xadd(KEYS.ingress(TENANT), encode(Open(stream, prompt="a {context}")))
            while not self._stop.wait(0.002):
                number += 1
                stream, text = STREAMS[number % len(STREAMS)], str(number)
                try:
                    client.xadd(KEYS.ingress(TENANT), encode(Append(stream, text=text)))
                    self.acknowledged[stream].append(text)
                except redis.RedisError:
                    self.unsure.add(text)

    def check(self, client: redis.Redis) -> None:
        """Nothing that was acknowledged is lost, doubled or out of order, in the log and in the entries."""
        wait_for("ingress is empty", lambda: client.xlen(KEYS.ingress(TENANT)) == 0)
        logged: dict[str, list[dict[bytes, bytes]]] = defaultdict(list)
        for _, fields in client.xrange(KEYS.log(POD, INCARNATION)):
            logged[fields[b"stream"].decode()].append(fields)
        assert sorted(logged) == STREAMS
        for stream in STREAMS:
            adopt, *passed = logged[stream]
            assert (adopt[b"op"], adopt[b"upto"]) == (b"adopt", b"1")
            entries = [fields for _, fields in client.xrange(KEYS.entries(TENANT, stream))]
            for kind, found, first in (("log", passed, 2), ("entries", entries, 1)):
                sequence = [int(fields[b"seq"]) for fields in found]
                assert sequence == list(range(first, first + len(found))), (kind, stream)
                texts = [fields[b"text"].decode() for fields in found if b"text" in fields]
                assert texts == sorted(set(texts), key=int), (kind, stream)
                assert [text for text in texts if text not in self.unsure] == self.acknowledged[stream], (kind, stream)


def forwarded(client: redis.Redis) -> int:
    return int(client.xlen(KEYS.log(POD, INCARNATION)))


def test_ten_kills_lose_double_and_reorder_nothing(server: Any, client: redis.Redis, start: Any) -> None:
    beat(client)
    with Producer(server) as producer:
        for _ in range(10):
            before = forwarded(client)
            router = start()
            wait_for("50 entries are forwarded", lambda before=before: forwarded(client) > before + 50)
            router.kill()
            lapse(client)
        start()
    producer.check(client)


def test_a_stopped_router_that_comes_back_is_fenced(server: Any, client: redis.Redis, start: Any) -> None:
    beat(client)
    first, second = start(), start()
    for router in (first, second):
        wait_for("it answers", lambda router=router: router.get("/status.json")[0] == 200)
    ids = {json.loads(router.get("/status.json")[1])["router"]: router for router in (first, second)}
    with Producer(server) as producer:
        for _ in range(4):
            wait_for("somebody holds the lease", lambda: client.exists(KEYS.lease(TENANT)))
            before = forwarded(client)
            wait_for("50 entries are forwarded", lambda before=before: forwarded(client) > before + 50)
            holder = ids[client.hget(KEYS.lease(TENANT), "router").decode()]  # type: ignore[union-attr]
            os.kill(holder.process.pid, signal.SIGSTOP)
            lapse(client)
            wait_for("the standby takes over", lambda: client.exists(KEYS.lease(TENANT)))
            before = forwarded(client)
            wait_for("the standby forwards", lambda before=before: forwarded(client) > before + 50)
            os.kill(holder.process.pid, signal.SIGCONT)
    producer.check(client)
    assert first.process.poll() is None
    assert second.process.poll() is None


def test_a_restart_of_redis_is_survived(tmp_path: Path, start: Any, own_server: Any) -> None:
    with own_server.client() as client:
        beat(client)
    router = start(url=own_server.url)
    with Producer(own_server) as producer:
        for _ in range(3):
            with own_server.client() as client:
                before = forwarded(client)
                wait_for("50 entries are forwarded", lambda c=client, b=before: forwarded(c) > b + 50)
            own_server.restart()
    with own_server.client() as client:
        producer.check(client)
    assert router.process.poll() is None


def test_poison_stops_nothing(client: redis.Redis, start: Any) -> None:
    beat(client)
    router = start()
    client.set("unrelated", "x")
    deep = "[" * 200_000 + "]" * 200_000
    poison: list[dict[Any, Any]] = [
        {"stream": "good", "op": "append", "text": "x" * (10 << 20)},
        {"stream": "good", "op": "append", **{f"f{i}": "y" for i in range(9_000)}},
        {"stream": "good", "op": b"append", "text": b"\xff\xfe"},
        {"stream": "", "op": "append", "text": "x"},
        {"stream": "good\0", "op": "append", "text": "x"},
        {"stream": "good", "op": "append\0", "text": "x"},
        {"stream": "good", "op": "append", "text": "a\0b"},
        {"stream": "good", "op": "append", "tokens": deep},
        {"stream": "good", "op": "update", "context": deep},
        {"stream": "good", "op": "update", "context": '[{"id":"a","text":"\\ud800"}]'},
        {"stream": "bad", "op": "open", "messages": deep},
        {"stream": "bad2", "op": "open", "prompt": "{context}", "params": '{"a":' * 50_000},
        {"stream": "bad3", "op": "open", "prompt": "{context}", "options": '{"idle_timeout_ms": 1e999}'},
        {"\0": "\0"},
        {"stream": "x" * 100_000, "op": "open"},
        {"stream": "good", "op": "finish", "expect": "9" * 5_000},
    ]
    client.xadd(KEYS.ingress(TENANT), encode(Open("good", prompt="a {context}")))
    for number, fields in enumerate(poison):
        client.xadd(KEYS.ingress(TENANT), fields)
        client.xadd(KEYS.ingress(TENANT), encode(Append("good", text=f"after {number}")))
    client.xadd(KEYS.ingress(TENANT), encode(Finish("good")))
    wait_for("ingress is empty", lambda: client.xlen(KEYS.ingress(TENANT)) == 0)
    assert router.process.poll() is None
    entries = [fields for _, fields in client.xrange(KEYS.entries(TENANT, "good"))]
    texts = [fields.get(b"text") for fields in entries]
    expected: list[bytes | None] = []
    for number in range(len(poison)):
        expected += [b"a\0b"] if number == 6 else []
        expected.append(f"after {number}".encode())
    assert texts == [None, *expected, None]
    assert [int(fields[b"seq"]) for fields in entries] == list(range(1, len(entries) + 1))
    told = [json.loads(f[b"data"]) for _, f in client.xrange(KEYS.reply(TENANT, "good"))]
    assert {e["terminal"] for e in told} == {False}
    assert [e["code"] for e in told] == [
        "chunk_too_large",
        "malformed",
        "malformed",
        "unknown_op",
        "malformed",
        "malformed",
        "malformed",
        "malformed",
    ]
    for stream in ("bad", "bad2", "bad3"):
        (event,) = [json.loads(f[b"data"]) for _, f in client.xrange(KEYS.reply(TENANT, stream))]
        assert event["terminal"] is True
    assert [f[b"code"] for _, f in client.xrange(KEYS.rejected(TENANT))] == [b"malformed"] * 4


def test_a_chunk_longer_than_the_pool_s_is_told_and_left_out(client: redis.Redis, start: Any) -> None:
    beat(client)
    start("--max-chunk-bytes", "8")
    client.xadd(KEYS.ingress(TENANT), encode(Open("s", prompt="a {context}")))
    for text in ("12345678", "123456789", "1234"):
        client.xadd(KEYS.ingress(TENANT), encode(Append("s", text=text)))
    wait_for("ingress is empty", lambda: client.xlen(KEYS.ingress(TENANT)) == 0)
    texts = [fields.get(b"text") for _, fields in client.xrange(KEYS.entries(TENANT, "s"))]
    assert texts == [None, b"12345678", b"1234"]
    (event,) = [json.loads(fields[b"data"]) for _, fields in client.xrange(KEYS.reply(TENANT, "s"))]
    assert (event["code"], event["terminal"]) == ("chunk_too_large", False)
    assert event["message"] == "text has 9 bytes, limit 8"


def test_one_tenants_broken_keys_do_not_stop_another(client: redis.Redis, start: Any) -> None:
    beat(client)
    client.sadd(KEYS.tenants, "good", "broken", "Bad:Name", "leaseless")
    client.set(KEYS.ingress("broken"), "no stream")
    client.set(KEYS.lease("leaseless"), "no hash")
    client.xadd(KEYS.ingress("leaseless"), encode(Open("s", prompt="{context}")))
    router = start()
    client.xadd(KEYS.ingress("good"), encode(Open("s", prompt="{context}")))
    wait_for("the other tenant is served", lambda: client.exists(KEYS.route("good", "s")))
    client.delete(KEYS.ingress("broken"))
    client.xadd(KEYS.ingress("broken"), encode(Open("s", prompt="{context}")))
    wait_for("the mended tenant is served", lambda: client.exists(KEYS.route("broken", "s")))
    assert client.xlen(KEYS.ingress("leaseless")) == 1
    assert "Bad:Name" in router.said()


def test_http_and_a_graceful_end(client: redis.Redis, start: Any) -> None:
    beat(client)
    router = start()
    wait_for("it is healthy", lambda: router.get("/health")[0] == 200)
    status = json.loads(router.get("/status.json")[1])
    assert status["pool"] == KEYS.pool
    assert status["redis_reachable"] is True
    assert (status["open_streams"], status["waiting_streams"]) == (0, 0)
    assert status["tenants"] == {"default": {"held": True, "lag_entries": 0}}
    assert router.get("/nothing")[0] == 404
    metrics = router.get("/metrics")[1].decode()
    labels = 'namespace="tests",pool="process"'
    for code in ErrorCode:
        assert any(
            line.startswith("stream2llm_rejected_total{") and f'code="{code}"' in line and line.endswith(" 0.0")
            for line in metrics.splitlines()
        ), code
    for line in (
        f'stream2llm_router_assignments_total{{{labels},reason="open"}} 0.0',
        f'stream2llm_router_assignments_total{{{labels},reason="held"}} 0.0',
        f"stream2llm_router_adopted_streams_total{{{labels}}} 0.0",
        f"stream2llm_router_waiting_streams{{{labels}}} 0.0",
        *(f'stream2llm_router_waiting_reason{{{labels},reason="{lack}"}} 0.0' for lack in Lack),
        f"stream2llm_router_forward_seconds_count{{{labels}}} 0.0",
        f'stream2llm_router_lag_entries{{{labels},tenant="default"}} 0.0',
    ):
        assert line in metrics.splitlines()
    router.process.send_signal(signal.SIGTERM)
    assert router.process.wait(30) == 0
    assert not client.exists(KEYS.lease(TENANT))


def test_a_taken_port_is_named(client: redis.Redis, server: Any, start: Any) -> None:
    router = start("--http", f"127.0.0.1:{server.port}")
    assert router.process.wait(30) == 1
    assert f"cannot listen on 127.0.0.1:{server.port}" in router.said()
    assert "--http" in router.said()


@pytest.mark.parametrize("user", ["", "stranger@"])
def test_a_refused_login_ends_it_with_the_remedy(
    client: redis.Redis, server: Any, start: Any, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    client.config_set("requirepass", "right")
    try:
        monkeypatch.setenv("STREAM2LLM_REDIS_PASSWORD", "not-this-one")
        router = start(url=f"redis://{user}127.0.0.1:{server.port}")
        assert router.process.wait(60) == 1
        monkeypatch.delenv("STREAM2LLM_REDIS_PASSWORD")
        without = start()
        assert without.process.wait(60) == 1
    finally:
        client.config_set("requirepass", "")
    for said in (router.said(), without.said()):
        assert f"Redis at redis://127.0.0.1:{server.port}: the login is refused" in said
        assert "STREAM2LLM_REDIS_PASSWORD or --redis-password-file" in said
    assert "not-this-one" not in router.said()


def test_a_password_that_changes_under_it_is_waited_out_and_named(
    client: redis.Redis, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat(client)
    router = start()
    wait_for("it holds the lease", lambda: client.exists(KEYS.lease(TENANT)))
    client.config_set("requirepass", "new")
    try:
        client.client_kill_filter(_type="normal", skipme=True)
        wait_for("it names the remedy", lambda: "STREAM2LLM_REDIS_PASSWORD or --redis-password-file" in router.said())
    finally:
        client.config_set("requirepass", "")
    client.xadd(KEYS.ingress(TENANT), encode(Open("s", prompt="{context}")))
    wait_for("it serves again", lambda: client.exists(KEYS.route(TENANT, "s")))
    assert router.process.poll() is None


def test_an_evicting_server_is_refused(client: redis.Redis, start: Any) -> None:
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        router = start()
        assert router.process.wait(30) == 1
    finally:
        client.config_set("maxmemory-policy", "noeviction")
    assert "allkeys-lru" in router.said()
    assert "noeviction" in router.said()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pool", "Nonsense"], "NAMESPACE/NAME"),
        (["--http", "nowhere"], "HOST:PORT"),
        (["--redis", "redis://user:secret@127.0.0.1:1"], "--redis-password-file"),
        (["--retain-seconds", "0"], "at least 1"),
        (["--max-chunk-bytes", "1048577"], "must be from 1 to 1048576"),
    ],
)
def test_bad_arguments_are_explained(tmp_path: Path, arguments: list[str], words: str) -> None:
    router = Router("redis://127.0.0.1:1", tmp_path, *arguments)
    assert router.process.wait(30) == 2
    assert words in router.said()
    assert "Traceback" not in router.said()


def test_it_waits_for_a_redis_that_is_not_there(tmp_path: Path) -> None:
    router = Router(f"redis://127.0.0.1:{free_port()}", tmp_path)
    try:
        wait_for("it says that Redis is away", lambda: "cannot be reached yet" in router.said())
        wait_for("it says so over HTTP", lambda: router.get("/health")[0] == 503)
        wait_for(
            "it has tried and says so", lambda: json.loads(router.get("/status.json")[1])["redis_reachable"] is False
        )
        router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(30) == 0
    finally:
        router.kill()
