"""Every rule of the forwarding script, on real servers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry

from stream2llm.entries import Append, Cancel, Entry, Finish, Open, encode
from stream2llm.keys import PoolKeys
from stream2llm_router.forwarding import Forwarder
from stream2llm_router.metrics import RouterMetrics

pytestmark = pytest.mark.redis
KEYS = PoolKeys("tests/pool")
TENANT = "default"
OPEN = Open("s1", prompt="Context: {context} Question: why?")


class Bench:
    """One forwarder on one server, with what it left behind."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.forwarder = Forwarder(client, KEYS, RouterMetrics(KEYS.pool, CollectorRegistry()), block_ms=1)

    def beat(self, pod: str = "pod-0", incarnation: str = "aa", **changes: Any) -> None:
        seconds, micros = self.client.time()
        beat = {
            "incarnation": incarnation,
            "protocol": 1,
            "state": "ready",
            "capacity": {"max_open_streams": 8, "kv_tokens": 1000},
            "load": {"open_streams": 0, "backlog_tokens": 0, "kv_usage": 0.0},
            "time_ms": seconds * 1000 + micros // 1000,
        }
        self.client.hset(KEYS.pods, pod, json.dumps(beat | changes))

    def send(self, *entries: Entry | dict[Any, Any]) -> list[str]:
        return [
            self.client.xadd(KEYS.ingress(TENANT), entry if isinstance(entry, dict) else encode(entry)).decode()
            for entry in entries
        ]

    def forward(self) -> None:
        self.forwarder._refresh_at_s = 0.0
        while self.client.xlen(KEYS.ingress(TENANT)):
            self.forwarder.turn()

    def log(self, pod: str = "pod-0", incarnation: str = "aa") -> list[dict[bytes, bytes]]:
        return [fields for _, fields in self.client.xrange(KEYS.log(pod, incarnation))]

    def entries(self, stream: str = "s1") -> list[dict[bytes, bytes]]:
        return [fields for _, fields in self.client.xrange(KEYS.entries(TENANT, stream))]

    def errors(self, stream: str = "s1") -> list[dict[str, Any]]:
        return [json.loads(fields[b"data"]) for _, fields in self.client.xrange(KEYS.reply(TENANT, stream))]

    def rejected(self) -> list[tuple[bytes, bytes]]:
        return [(f[b"code"], f[b"stream"]) for _, f in self.client.xrange(KEYS.rejected(TENANT))]

    def route(self, stream: str = "s1") -> dict[bytes, bytes]:
        return self.client.hgetall(KEYS.route(TENANT, stream))  # type: ignore[return-value]


@pytest.fixture
def bench(server: Any) -> Any:
    with server.client() as client:
        yield Bench(client)


def test_an_open_is_adopted_and_later_entries_go_to_entries_and_log(bench: Bench) -> None:
    bench.beat()
    ids = bench.send(OPEN, Append("s1", text="one", chunk="c1"), Finish("s1"))
    bench.forward()
    assert [(e[b"op"], e[b"seq"], e[b"ingress_id"].decode()) for e in bench.entries()] == [
        (b"open", b"1", ids[0]),
        (b"append", b"2", ids[1]),
        (b"finish", b"3", ids[2]),
    ]
    adopt, append, finish = bench.log()
    assert adopt == {b"op": b"adopt", b"tenant": b"default", b"stream": b"s1", b"attempt": b"1", b"upto": b"1"}
    assert (append[b"text"], append[b"chunk"], append[b"seq"], append[b"attempt"]) == (b"one", b"c1", b"2", b"1")
    assert (finish[b"op"], finish[b"tenant"], finish[b"seq"]) == (b"finish", b"default", b"3")
    assert bench.route()[b"state"] == b"finishing"
    assert bench.client.xlen(KEYS.ingress(TENANT)) == 0


def test_fields_that_nobody_knows_are_dropped(bench: Bench) -> None:
    bench.beat()
    many = {f"junk{i}": "x" for i in range(9000)}
    bench.send(OPEN, {**encode(Append("s1", text="t")), **many}, {**encode(Append("s1", text="u")), "seq": "99"})
    bench.forward()
    assert [set(e) - {b"messages", b"prompt"} for e in bench.entries()[1:]] == [
        {b"stream", b"op", b"text", b"seq", b"ingress_id"}
    ] * 2
    assert bench.entries()[2][b"seq"] == b"3"


def test_identical_open_changes_nothing_and_a_different_one_is_an_error(bench: Bench) -> None:
    bench.beat()
    ids = bench.send(OPEN, OPEN, Open("s1", prompt="other {context}"))
    bench.forward()
    assert len(bench.entries()) == 1
    assert [(e["code"], e["terminal"], e["ingress_id"]) for e in bench.errors()] == [("open_conflict", False, ids[2])]


def test_entries_without_a_stream_go_to_rejected(bench: Bench) -> None:
    bench.beat()
    bench.send(
        Append("nobody", text="x"),
        {"stream": "", "op": "open"},
        {"op": "append"},
        {"stream": b"\xff\xfe", "op": "open"},
    )
    bench.forward()
    assert bench.rejected() == [
        (b"unknown_stream", b"nobody"),
        (b"malformed", b""),
        (b"malformed", b""),
        (b"malformed", b""),
    ]


def test_a_bad_open_answers_its_reader_with_a_terminal_error(bench: Bench) -> None:
    bench.beat()
    bench.send({"stream": "s1", "op": "open", "prompt": "no marker"}, Append("s1", text="x"), Cancel("s1"))
    bench.forward()
    assert [(e["code"], e["terminal"], e["field"]) for e in bench.errors()] == [("marker", True, "prompt")]
    assert bench.route()[b"state"] == b"ended"
    assert bench.client.pttl(KEYS.route(TENANT, "s1")) > 0
    assert bench.client.pttl(KEYS.reply(TENANT, "s1")) > 0
    assert bench.rejected() == [(b"stream_ended", b"s1")]


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"op": "shout"}, "unknown_op", "op"),
        ({}, "malformed", "op"),
        ({"op": "append"}, "malformed", "text"),
        ({"op": "append", "text": b"\xff"}, "malformed", "text"),
        ({"op": "append", "text": "a", "tokens": "[1]"}, "mixed_input", "tokens"),
        ({"op": "append", "tokens": '["1"]'}, "malformed", "tokens"),
        ({"op": "append", "tokens": "[" * 100_000}, "malformed", "tokens"),
        ({"op": "append", "text": "x" * (10 << 20)}, "chunk_too_large", "text"),
        ({"op": "update", "context": "{}"}, "malformed", "context"),
        ({"op": "update", "context": json.dumps([{"id": str(i)} for i in range(4097)])}, "too_many_items", "context"),
        ({"op": "finish", "expect": "many"}, "malformed", "expect"),
        ({"op": "update", "context": "[]", "version": "1.5"}, "malformed", "version"),
    ],
)
def test_a_bad_entry_of_a_known_stream_is_told_and_the_stream_goes_on(
    bench: Bench, fields: dict[str, Any], code: str, field: str
) -> None:
    bench.beat()
    ids = bench.send(OPEN, {"stream": "s1", **fields}, Append("s1", text="after"))
    bench.forward()
    assert [(e["code"], e["terminal"], e["field"], e["ingress_id"]) for e in bench.errors()] == [
        (code, False, field, ids[1])
    ]
    assert [e[b"seq"] for e in bench.entries()] == [b"1", b"2"]
    assert bench.entries()[1][b"text"] == b"after"


def test_a_stream_may_not_outgrow_its_limit(bench: Bench) -> None:
    bench.beat()
    bench.send(OPEN, *[Append("s1", text="x" * (1 << 20)) for _ in range(17)])
    bench.forward()
    assert len(bench.entries()) == 1 + 15
    assert {e["code"] for e in bench.errors()} == {"stream_too_large"}


def test_without_a_pod_a_stream_is_held_and_then_assigned_whole(bench: Bench) -> None:
    bench.send(OPEN, Append("s1", text="early"), Finish("s1"))
    bench.forward()
    assert bench.route()[b"state"] == b"held"
    bench.beat()
    bench.forwarder._refresh_at_s = 0.0
    bench.forwarder.turn()
    assert bench.route()[b"state"] == b"finishing"
    assert bench.log() == [{b"op": b"adopt", b"tenant": b"default", b"stream": b"s1", b"attempt": b"1", b"upto": b"3"}]


def test_a_router_that_takes_over_finds_the_held_streams(bench: Bench) -> None:
    bench.send(OPEN)
    bench.forward()
    bench.forwarder.leases.release_all()
    bench.beat()
    Bench(bench.client).forwarder.turn()
    assert bench.route()[b"state"] == b"open"


def test_a_held_stream_ends_overloaded_when_nobody_comes(bench: Bench) -> None:
    bench.forwarder._holding._open_wait_ms = 0
    bench.send(OPEN)
    bench.forward()
    bench.forwarder._refresh_at_s = 0.0
    bench.forwarder.turn()
    assert [(e["code"], e["terminal"]) for e in bench.errors()] == [("overloaded", True)]
    assert bench.entries() == []
    assert bench.route()[b"state"] == b"ended"


def test_a_router_without_the_lease_changes_nothing(bench: Bench) -> None:
    bench.beat()
    bench.send(OPEN)
    bench.client.hset(KEYS.lease(TENANT), mapping={"router": "other", "epoch": "1"})
    bench.forwarder._refresh_at_s = 0.0
    assert bench.forwarder.turn() == 0
    assert bench.client.xlen(KEYS.ingress(TENANT)) == 1


def test_a_lost_lease_fences_the_old_router(bench: Bench) -> None:
    bench.beat()
    bench.send(OPEN)
    bench.forward()
    bench.client.hset(KEYS.lease(TENANT), mapping={"router": "other", "epoch": "1"})
    bench.send(Append("s1", text="x"))
    bench.forwarder.turn()
    assert len(bench.entries()) == 1
    assert bench.client.xlen(KEYS.ingress(TENANT)) == 1


def test_scripts_are_loaded_again_after_the_server_forgot_them(bench: Bench) -> None:
    bench.beat()
    bench.send(OPEN)
    bench.forward()
    bench.client.script_flush()
    bench.send(Append("s1", text="x"))
    bench.forward()
    assert len(bench.entries()) == 2


def test_every_key_of_a_stream_expires(bench: Bench) -> None:
    bench.beat()
    bench.send(OPEN, Append("s1", text="x"), {"stream": "s1", "op": "shout"})
    bench.forward()
    for key in (KEYS.route(TENANT, "s1"), KEYS.entries(TENANT, "s1"), KEYS.reply(TENANT, "s1"), KEYS.lease(TENANT)):
        assert bench.client.pttl(key) > 0, key
