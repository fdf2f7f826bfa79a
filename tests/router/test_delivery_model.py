"""Random histories of producers, routers and pods on real scripts: whatever stops where, nothing is lost or doubled.

The pods are stand-ins that call the pods' own scripts; the answer to a stream is a function of its entries, so a stream
that is answered twice, or by a pod that has missed an entry, shows.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from stream2llm.entries import Append, Entry, Finish, Open, encode
from stream2llm.events import Done, ErrorEvent, Token, is_terminal, parse_event
from stream2llm.events import encode as encode_event
from stream2llm.keys import PoolKeys
from stream2llm_pod.serving import scripts
from stream2llm_pod.serving.carrying import read_reply
from stream2llm_router.forwarding import Forwarder
from stream2llm_router.metrics import RouterMetrics

pytestmark = pytest.mark.redis
KEYS = PoolKeys("tests/delivery")
TENANT = "default"
STREAMS = ("a", "b:1", "c", "d")
PODS = ("p0", "p1", "p2")
ANSWER_TOKENS = 3
RETAIN_MS = 600_000
NO_EXPIRY = -1
"""What Redis answers to PTTL for a key that stays."""


class Stopped(Exception):
    """The process ends here."""


class Fragile(redis.Redis):
    """A connection of a process that ends before or after its n-th command from now."""

    left: int | None = None
    after = False

    def execute_command(self, *args: Any, **options: Any) -> Any:
        if self.left is None:
            return super().execute_command(*args, **options)
        self.left -= 1
        if self.left >= 0:
            return super().execute_command(*args, **options)
        if self.after:
            super().execute_command(*args, **options)
        raise Stopped

    def xread(self, streams: Any, count: int | None = None, block: int | None = None) -> Any:
        # A server looks ten times a second whether somebody has waited long enough.
        return super().xread(streams, count=count)


def answer_token(entries: list[str], index: int) -> str:
    return hashlib.sha256(repr((entries, index)).encode()).hexdigest()[:8]


@dataclass
class Session:
    attempt: int
    incarnation: str
    open_id: str
    seqs: list[int]
    entries: list[str]
    sent: int
    over: bool = False


@dataclass
class Pod:
    """Its sessions outlive a stop (SIGSTOP), and not a crash."""

    name: str
    client: redis.Redis
    lives: int = 0
    incarnation: str = ""
    stopped: bool = False
    sessions: dict[str, Session] = field(default_factory=dict)

    def start(self) -> None:
        self.lives += 1
        self.incarnation = f"{self.name}-{self.lives}"
        self.sessions.clear()
        self.stopped = False
        self.beat(first=True)

    def beat(self, *, first: bool = False) -> None:
        beat = {
            "incarnation": self.incarnation,
            "protocol": 1,
            "fingerprint": "f",
            "state": "ready",
            "capacity": {"max_open_streams": 3},
            "load": {"open_streams": 0, "backlog_tokens": 0, "kv_usage": 0.0},
        }
        text = json.dumps(beat, separators=(",", ":"))[:-1]
        log = KEYS.log(self.name, self.incarnation)
        keys = [KEYS.pods, log, KEYS.incarnations]
        answer: Any = self.script(
            "heartbeat", keys, self.name, self.incarnation, text, 3_600_000, int(first), 90_000_000
        )
        if not answer[2]:
            self.start()

    def script(self, name: str, keys: list[str], *arguments: Any) -> Any:
        return self.client.eval(scripts.load(name).source, len(keys), *keys, *arguments)

    def take(self, count: int, *, trim: bool = True) -> None:
        log = KEYS.log(self.name, self.incarnation)
        answer: Any = self.client.xread({log: "0"}, count=count)
        for entry_id, fields in answer[0][1] if answer else ():
            values = {name.decode(): value.decode() for name, value in fields.items()}
            if values["op"] == "adopt":
                self.adopt(values["stream"], int(values["attempt"]))
            else:
                session = self.sessions.get(values["stream"])
                if session is not None and session.attempt == int(values["attempt"]):
                    self.apply(session, values)
            if trim:
                self.client.xdel(log, entry_id)

    def adopt(self, stream: str, attempt: int) -> None:
        names = ("state", "attempt", "incarnation", "open_id", "next_token")
        raw: Any = self.client.hmget(KEYS.route(TENANT, stream), *names)
        state, current, incarnation, open_id, next_token = ((value or b"").decode() for value in raw)
        if state in ("", "ended") or current != str(attempt) or incarnation != self.incarnation:
            return
        held = self.sessions.get(stream)
        if held is not None and not held.over and held.attempt >= attempt:
            return
        carried = read_reply(self.client.xrange(KEYS.reply(TENANT, stream)), int(next_token))
        session = Session(attempt, incarnation, open_id, [], [], len(carried.token_ids))
        for _, fields in self.client.xrange(KEYS.entries(TENANT, stream)):
            self.apply(session, {name.decode(): value.decode() for name, value in fields.items()})
        self.sessions[stream] = session

    @staticmethod
    def apply(session: Session, values: dict[str, str]) -> None:
        seq = int(values["seq"])
        if session.seqs and seq <= session.seqs[-1]:
            return
        assert seq == len(session.seqs) + 1
        session.seqs.append(seq)
        session.entries.append(values.get("text") or values["op"])

    def answer(self, stream: str, tokens: int, *, twice: bool) -> None:
        session = self.sessions.get(stream)
        if session is None or session.over or "finish" not in session.entries:
            return
        prompt = session.entries[: session.entries.index("finish")]
        arguments: list[Any] = []
        for _ in range(tokens):
            if session.sent < ANSWER_TOKENS:
                event = encode_event(Token(session.sent, answer_token(prompt, session.sent), (session.sent,)))
                arguments += [event["event"], event["data"], 0, session.sent, 1]
                session.sent += 1
        if session.sent == ANSWER_TOKENS:
            event = encode_event(Done("stop"))
            arguments += [event["event"], event["data"], 1, -1, 0]
            session.over = True
        fence = (session.attempt, session.incarnation, session.open_id, RETAIN_MS, RETAIN_MS, 1_000)
        keys = [
            KEYS.route(TENANT, stream),
            KEYS.reply(TENANT, stream),
            KEYS.entries(TENANT, stream),
            KEYS.usage(TENANT),
            KEYS.assigned(self.name, session.incarnation),
        ]
        for _ in range(1 + twice):
            try:
                self.script("reply", keys, *fence, f"{TENANT}:{stream}", len(prompt) + 1, *arguments)
            except redis.ResponseError as error:
                if str(error).split()[0] not in ("FENCED", "ENDED", "GONE"):
                    raise
                session.over = True


class World:
    """One server with everything on it, and what was sent."""

    def __init__(self, server: Any, client: redis.Redis) -> None:
        client.flushall()
        self.server, self.client = server, client
        self.sent: dict[str, list[str]] = {}
        self.numbers = 0
        self.connections: list[redis.Redis] = []
        self.routers = [self.new_router(), self.new_router()]
        self.pods = {name: Pod(name, client) for name in PODS}
        for pod in self.pods.values():
            pod.start()

    def close(self) -> None:
        for connection in self.connections:
            connection.close()

    def new_router(self) -> tuple[Forwarder, Fragile]:
        connection = Fragile(port=self.server.port, protocol=2)
        self.connections.append(connection)
        forwarder = Forwarder(connection, KEYS, RouterMetrics(KEYS.pool, CollectorRegistry()), block_ms=1)
        # Time does not pass here; lapses are set by hand.
        forwarder._fleet._in_touch_since_s = float("-inf")
        forwarder._fleet._heard_s = float("inf")
        return forwarder, connection

    def send(self, kind: str, stream: str) -> None:
        sent = self.sent.setdefault(stream, [])
        entry: Entry
        if kind == "open":
            entry = Open(stream, prompt="{context}")
        elif kind == "finish":
            entry = Finish(stream)
        else:
            self.numbers += 1
            entry = Append(stream, text=f"t{self.numbers}")
        self.client.xadd(KEYS.ingress(TENANT), encode(entry))
        sent.append(kind if kind != "append" else f"t{self.numbers}")

    def turn(self, which: int) -> None:
        forwarder, _ = self.routers[which]
        forwarder._refresh_at_s = 0.0
        forwarder.turn()

    def crash_router(self, which: int, commands: int, *, after: bool) -> None:
        forwarder, connection = self.routers[which]
        connection.left, connection.after = commands, after
        with contextlib.suppress(Stopped):
            self.turn(which)
        self.forget_router(forwarder)
        self.routers[which] = self.new_router()

    def forget_router(self, forwarder: Forwarder) -> None:
        """Its lease and its place among the routers have lapsed; it need not know."""
        self.client.hdel(KEYS.routers, forwarder.leases.router)
        if self.client.hget(KEYS.lease(TENANT), "router") == forwarder.leases.router.encode():
            self.client.delete(KEYS.lease(TENANT))
        for other, _ in self.routers:
            if other is not forwarder:
                other.leases._attend_at_s = float("-inf")
                other.leases._renew_at_s.clear()

    def lapse(self, pod: Pod) -> None:
        """Ten seconds without a word of this pod."""
        raw = self.client.hget(KEYS.pods, pod.name)
        if raw and (beat := json.loads(raw))["incarnation"] == pod.incarnation:
            self.client.hset(KEYS.pods, pod.name, json.dumps(beat | {"time_ms": beat["time_ms"] - 60_000}))

    def act(self, step: tuple[Any, ...]) -> None:
        kind, *arguments = step
        if kind == "send":
            self.send(*arguments)
        elif kind == "turn":
            self.turn(arguments[0])
        elif kind == "crash router":
            self.crash_router(arguments[0], arguments[1], after=arguments[2])
        elif kind == "stall router":
            # It goes on with the epoch that it had, beside the one that takes over.
            self.forget_router(self.routers[arguments[0]][0])
        else:
            self.act_on_pod(kind, self.pods[arguments[0]], *arguments[1:])

    def act_on_pod(self, kind: str, pod: Pod, *arguments: Any) -> None:
        if kind == "stop pod":
            pod.stopped = True
            self.lapse(pod)
        elif kind == "resume pod":
            # First what it was about to do, as a process would that was stopped in the middle of it.
            pod.take(5)
            for stream in STREAMS:
                pod.answer(stream, 1, twice=False)
            pod.stopped = False
            pod.beat()
        elif pod.stopped:
            return
        elif kind == "crash pod":
            pod.start()
        elif kind == "take":
            pod.take(arguments[0], trim=arguments[1])
        else:
            pod.answer(arguments[0], arguments[1], twice=arguments[2])

    def settle(self) -> None:
        """Everybody works until there is nothing left to do."""
        for stream, sent in self.sent.items():
            if "open" in sent and "finish" not in sent[sent.index("open") :]:
                self.send("finish", stream)
        for pod in self.pods.values():
            if pod.stopped:
                self.act(("resume pod", pod.name))
        for _ in range(60):
            for which, (forwarder, _) in enumerate(self.routers):
                # A second has passed, so it looks again who else is there.
                forwarder.leases._attend_at_s = float("-inf")
                forwarder.leases._renew_at_s.clear()
                self.turn(which)
            for pod in self.pods.values():
                pod.beat()
                pod.take(100)
                for stream in STREAMS:
                    pod.answer(stream, ANSWER_TOKENS, twice=False)
            if not self.client.exists(KEYS.held(TENANT), KEYS.gone) and self.all_ended():
                return
            # A stream on probation holds others back, for a time that does not pass here.
            for pod in self.pods.values():
                for member in self.client.hkeys(KEYS.assigned(pod.name, pod.incarnation)):
                    self.client.hset(KEYS.assigned(pod.name, pod.incarnation), member, "2 0")

    def all_ended(self) -> bool:
        routes = (self.client.hget(KEYS.route(TENANT, stream), "state") for stream in self.sent)
        return self.client.xlen(KEYS.ingress(TENANT)) == 0 and all(state in (None, b"ended") for state in routes)

    def check(self) -> None:
        for stream, sent in self.sent.items():
            if "open" in sent:
                self.check_stream(stream, sent[sent.index("open") :])
        assert self.client.zcard(KEYS.held(TENANT)) == 0
        assert self.client.scard(KEYS.gone) == 0
        usage = self.client.hgetall(KEYS.usage(TENANT))
        assert int(usage.get(b"streams", 0)) == int(usage.get(b"bytes", 0)) == 0
        for key in self.client.keys(f"{KEYS.prefix}:*"):
            if self.client.type(key) == b"stream" and (b":log:" in key or b":ingress:" in key):
                assert self.client.xlen(key) == 0, key
            elif key.decode() not in (KEYS.pods, KEYS.incarnations):
                assert b":entries:" not in key
                assert b":assigned:" not in key
                # A lease may have run out since the keys were listed, and then there is no key.
                assert self.client.pttl(key) != NO_EXPIRY or b":rejected:" in key, key

    def check_stream(self, stream: str, sent: list[str]) -> None:
        events = [parse_event(fields) for _, fields in self.client.xrange(KEYS.reply(TENANT, stream))]
        assert [is_terminal(event) for event in events if event].count(True) == 1
        last = events[-1]
        if isinstance(last, ErrorEvent):
            assert last.code == "attempts_exhausted"
            return
        assert isinstance(last, Done)
        prompt = [mark for mark in sent[: sent.index("finish")] if mark != "open" or mark is sent[0]]
        prompt = ["open", *(mark for mark in prompt[1:] if mark != "open")]
        tokens = [event for event in events if isinstance(event, Token)]
        assert [token.index for token in tokens] == list(range(ANSWER_TOKENS))
        assert [token.text for token in tokens] == [answer_token(prompt, index) for index in range(ANSWER_TOKENS)]


ROUTER, POD, STREAM = st.integers(0, 1), st.sampled_from(PODS), st.sampled_from(STREAMS)
SEND = st.tuples(st.just("send"), st.sampled_from(("open", "append", "append", "finish")), STREAM)
STEP = st.one_of(
    SEND,
    SEND,
    st.tuples(st.just("turn"), ROUTER),
    st.tuples(st.just("turn"), ROUTER),
    st.tuples(st.just("take"), POD, st.integers(1, 4), st.booleans()),
    st.tuples(st.just("answer"), POD, STREAM, st.integers(1, 3), st.booleans()),
    st.tuples(st.just("crash router"), ROUTER, st.integers(0, 8), st.booleans()),
    st.tuples(st.just("stall router"), ROUTER),
    st.tuples(st.just("stop pod"), POD),
    st.tuples(st.just("resume pod"), POD),
    st.tuples(st.just("crash pod"), POD),
)
QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def run_history(server: Any, steps: list[tuple[Any, ...]]) -> None:
    with server.client() as client:
        world = World(server, client)
        try:
            for stream in STREAMS[:2]:
                world.send("open", stream)
            for step in steps:
                world.act(step)
            world.settle()
            world.check()
        finally:
            world.close()


@settings(max_examples=100, suppress_health_check=QUIET)
@given(steps=st.lists(STEP, max_size=50))
def test_whatever_stops_each_stream_is_answered_once_from_all_its_entries(
    server: Any, steps: list[tuple[Any, ...]]
) -> None:
    run_history(server, steps)


@pytest.mark.long
@settings(max_examples=3_000, suppress_health_check=QUIET)
@given(steps=st.lists(STEP, min_size=20, max_size=120))
def test_thousands_of_histories(server: Any, steps: list[tuple[Any, ...]]) -> None:
    run_history(server, steps)
