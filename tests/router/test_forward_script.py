"""Every rule of the forwarding script, on real servers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry
from redis_proxy import PASS, SILENT, RedisProxy, name_of

from stream2llm.entries import Append, Cancel, Entry, Finish, Open, encode
from stream2llm.keys import PoolKeys
from stream2llm_router.forwarding import Forwarder
from stream2llm_router.judging import judge
from stream2llm_router.leasing import Leases
from stream2llm_router.metrics import RouterMetrics
from stream2llm_router.scripts import Ended, Fenced, Scripts, Stale, Unfit

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


def test_repeats_of_an_ended_stream_change_nothing_and_news_are_rejected(bench: Bench) -> None:
    bench.beat()
    bench.send(OPEN)
    bench.forward()
    bench.client.hset(KEYS.route(TENANT, "s1"), "state", "ended")
    bench.send(OPEN, Finish("s1"), Cancel("s1"), Append("s1", text="x"), Open("s1", prompt="new {context}"))
    bench.send({"stream": "s1", "op": "shout"})
    bench.forward()
    assert bench.rejected() == [(b"stream_ended", b"s1"), (b"open_conflict", b"s1"), (b"unknown_op", b"s1")]
    assert bench.errors() == []
    assert len(bench.log()) == 1


def test_a_refusal_names_code_message_field_and_entry(bench: Bench) -> None:
    (identifier,) = bench.send({"stream": "s9", "op": "append"})
    bench.forward()
    ((_, fields),) = bench.client.xrange(KEYS.rejected(TENANT))
    assert fields == {
        b"code": b"malformed",
        b"message": b"an append needs text or tokens",
        b"field": b"text",
        b"ingress_id": identifier.encode(),
        b"stream": b"s9",
    }


def test_a_pod_that_left_after_it_was_chosen_gets_nothing(bench: Bench) -> None:
    bench.beat()
    bench.forwarder.turn()
    bench.client.delete(KEYS.pods)
    bench.send(OPEN)
    bench.forwarder.turn()
    assert bench.route()[b"state"] == b"held"
    assert bench.log() == []


def test_a_full_pod_gets_nothing_and_the_next_one_does(bench: Bench) -> None:
    bench.beat("pod-0", "aa", capacity={"max_open_streams": 1})
    bench.beat("pod-1", "bb", capacity={"max_open_streams": 1})
    bench.send(*[Open(f"s{i}", prompt="{context}") for i in range(3)])
    bench.forward()
    assert [f[b"stream"] for f in bench.log("pod-0", "aa")] == [b"s0"]
    assert [f[b"stream"] for f in bench.log("pod-1", "bb")] == [b"s1"]
    assert bench.route("s2")[b"state"] == b"held"


def test_a_pod_that_has_the_model_comes_first(bench: Bench) -> None:
    bench.beat("pod-0", "aa", models=["base"])
    bench.beat("pod-1", "bb", models=["base", "tuned"])
    bench.send(Open("s1", prompt="{context}", params={"model": "tuned"}))
    bench.send(Open("s2", prompt="{context}", params={"model": "nobody's"}))
    bench.forward()
    assert bench.route("s1")[b"pod"] == b"pod-1"
    assert bench.route("s2")[b"pod"] == b"pod-0"


def test_more_held_streams_than_allowed_end_overloaded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream2llm_router.forwarding.MAX_HELD_STREAMS", 2)
    bench.send(*[Open(f"s{i}", prompt="{context}") for i in range(3)])
    bench.forward()
    assert [bench.route(f"s{i}")[b"state"] for i in range(3)] == [b"held", b"held", b"ended"]
    assert [(e["code"], e["terminal"]) for e in bench.errors("s2")] == [("overloaded", True)]
    assert bench.entries("s2") == []


def test_endless_rubbish_does_not_fill_the_reply(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream2llm_router.forwarding.MAX_TOLD_ERRORS", 3)
    bench.beat()
    bench.send(OPEN, *[{"stream": "s1", "op": "shout"} for _ in range(5)])
    bench.forward()
    assert len(bench.errors()) == 3
    assert bench.rejected() == [(b"unknown_op", b"s1")] * 2


@pytest.mark.parametrize("key", ["route", "entries", "reply"])
def test_a_foreign_key_type_costs_its_stream_only(bench: Bench, key: str) -> None:
    bench.beat()
    bench.send(OPEN)
    bench.forward()
    name = getattr(KEYS, key)(TENANT, "s1")
    bench.client.delete(name)
    bench.client.set(name, "foreign")
    bench.send(Append("s1", text="x"), {"stream": "s1", "op": "shout"}, Open("s2", prompt="{context}"))
    bench.forward()
    assert bench.route("s2")[b"state"] == b"open"


def test_a_batch_is_cut_by_number_and_by_bytes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    forward = bench.forwarder._forward
    monkeypatch.setattr(bench.forwarder, "_forward", lambda t, e, a: (sizes.append(len(e)), forward(t, e, a)))
    bench.beat()
    bench.send(OPEN, *[Append("s1", text="x") for _ in range(149)])
    bench.forward()
    assert sizes == [100, 50]
    sizes.clear()
    bench.send(*[Append("s1", text="x" * (100 << 10)) for _ in range(5)])
    bench.forward()
    assert sizes == [2, 2, 1]


def test_a_backlog_is_judged_once_and_passes_in_order_with_what_is_wrong_in_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the server works on a batch the next one is judged; many batches come from one read."""
    judged: list[Any] = []

    def counting(fields: Any, rules: Any) -> Any:
        judged.append(fields)
        return judge(fields, rules)

    monkeypatch.setattr("stream2llm_router.forwarding.judge", counting)
    bench.beat()
    bench.send(OPEN)
    bench.forward()
    for _ in range(3):
        # Let the reads grow.
        bench.send({"stream": "s1", "op": "shout"})
        bench.forward()
    judged.clear()
    told = len(bench.errors())
    bench.send(*[Append("s1", text=str(i)) if i % 10 else {"stream": "s1", "op": "shout"} for i in range(950)])
    bench.forward()
    assert len(judged) == 950
    texts = [entry[b"text"].decode() for entry in bench.entries() if b"text" in entry]
    assert texts == [str(i) for i in range(950) if i % 10]
    assert [int(entry[b"seq"]) for entry in bench.entries()] == list(range(1, 857))
    assert len(bench.errors()) - told == 95


def test_scripts_that_vanish_between_the_batches_of_a_backlog_are_loaded_again(bench: Bench) -> None:
    bench.beat()
    bench.send(OPEN)
    bench.forward()
    begin = bench.forwarder._scripts.begin

    def forgetful(*arguments: Any) -> Any:
        bench.client.script_flush()
        return begin(*arguments)

    bench.forwarder._scripts.begin = forgetful  # type: ignore[method-assign]
    bench.send(*[Append("s1", text=str(i)) for i in range(500)])
    bench.forward()
    assert [entry[b"text"].decode() for entry in bench.entries()[1:]] == [str(i) for i in range(500)]


def test_a_router_that_loses_its_lease_in_the_middle_of_a_backlog_stops_there(bench: Bench) -> None:
    bench.beat()
    bench.send(OPEN)
    bench.forward()
    begin = bench.forwarder._scripts.begin
    there: list[int] = []

    def overtaken(*arguments: Any) -> Any:
        there.append(len(bench.entries()))
        if len(there) == 2:
            bench.client.hset(KEYS.lease(TENANT), mapping={"router": "other", "epoch": "1"})
        return begin(*arguments)

    bench.forwarder._scripts.begin = overtaken  # type: ignore[method-assign]
    bench.send(*[Append("s1", text=str(i)) for i in range(500)])
    while len(there) < 2:
        bench.forwarder.turn()
    bench.forwarder.turn()
    assert len(bench.entries()) == there[1] > 100
    assert bench.client.xlen(KEYS.ingress(TENANT)) == 501 - there[1]


def test_an_answer_that_does_not_come_is_not_taken_for_the_next_one_s(server: Any) -> None:
    """The connection that waits for it is given up with it."""
    with server.client() as observer:
        lost = []

        def decide(command: list[bytes]) -> str:
            if name_of(command) == "EVALSHA" and b"slow" in command:
                lost.append(command)
                return SILENT
            return PASS

        proxy = RedisProxy(server.port, decide)
        client = redis.Redis(port=proxy.port, protocol=2, retry=None, socket_timeout=1)
        scripts = Scripts(client)
        try:
            scripts.call("attend", [KEYS.routers], ["me", 100_000, 0])
            finish = scripts.begin("attend", [KEYS.routers], ["slow", 100_000, 0])
            with pytest.raises(redis.TimeoutError):
                finish()
            assert scripts.call("attend", [KEYS.routers], ["me", 100_000, 1]) == [b"slow"]
            assert len(lost) == 1
            assert observer.hkeys(KEYS.routers) == [b"slow"]
        finally:
            client.close()
            proxy.close()


@pytest.mark.parametrize(
    ("setting", "bad", "good"), [("maxmemory", "1mb", "0"), ("min-replicas-to-write", "1", "0")], ids=["full", "alone"]
)
def test_entries_wait_while_the_server_takes_no_writes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, setting: str, bad: str, good: str
) -> None:
    """After some tries the first of them was turned away as `internal`, for nothing that it had done."""
    monkeypatch.setattr("stream2llm_router.forwarding.PAUSE_S", 0.0)
    bench.beat()
    bench.send(OPEN)
    bench.forward()
    bench.send(Append("s1", text="x"), Finish("s1"))
    tried = []
    call = bench.forwarder._scripts.call

    def counted(name: str, keys: list[str], arguments: list[Any]) -> Any:
        if name == "forward":
            tried.append(name)
        return call(name, keys, arguments)

    monkeypatch.setattr(bench.forwarder._scripts, "call", counted)
    bench.client.config_set(setting, bad)
    try:
        while len(tried) < 6:
            bench.forwarder.turn()
    finally:
        bench.client.config_set(setting, good)
    assert bench.client.xlen(KEYS.ingress(TENANT)) == 2
    bench.forward()
    assert [e[b"op"] for e in bench.entries()] == [b"open", b"append", b"finish"]
    assert bench.errors() == []


def test_an_entry_that_the_script_fails_on_is_turned_away_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a mistake in the script would show: neighbours pass, and the tenant goes on."""
    monkeypatch.setattr("stream2llm_router.forwarding.PAUSE_S", 0.0)
    call = bench.forwarder._scripts.call

    def broken(name: str, keys: list[str], arguments: list[Any]) -> Any:
        if name == "forward" and "append" in arguments:
            raise redis.ResponseError("a mistake")
        return call(name, keys, arguments)

    monkeypatch.setattr(bench.forwarder._scripts, "call", broken)
    bench.beat()
    bench.send(OPEN, Append("s1", text="x"), Finish("s1"))
    bench.forward()
    assert [e["code"] for e in bench.errors()] == ["internal"]
    assert [e[b"op"] for e in bench.entries()] == [b"open", b"finish"]


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_leases_grow_are_kept_and_are_given_back(bench: Bench) -> None:
    clock = Clock()
    scripts = bench.forwarder._scripts
    first, second = (Leases(scripts, KEYS, name, clock) for name in ("one", "two"))
    epoch = first.hold([TENANT])[TENANT]
    clock.now_s = 10.0
    assert first.hold([TENANT]) == {TENANT: epoch}
    first.release_all()
    assert bench.client.hgetall(KEYS.routers) == {}
    later = second.hold([TENANT])[TENANT]
    assert int(later) > int(epoch)
    assert scripts.call("lease", [KEYS.lease(TENANT), KEYS.ingress(TENANT)], ["one", 5000]) is None


def test_a_released_tenant_leaves_no_empty_ingress(bench: Bench) -> None:
    leases = Leases(bench.forwarder._scripts, KEYS, "one", Clock())
    leases.hold([TENANT])
    entry = bench.client.xadd(KEYS.ingress(TENANT), {"stream": "s"})
    bench.client.xdel(KEYS.ingress(TENANT), entry)
    leases.release_all()
    assert not bench.client.exists(KEYS.ingress(TENANT), KEYS.lease(TENANT))


def test_what_waits_in_a_released_ingress_expires_unless_somebody_comes(bench: Bench) -> None:
    clock = Clock()
    one, two = (Leases(bench.forwarder._scripts, KEYS, name, clock) for name in ("one", "two"))
    one.hold([TENANT])
    bench.client.xadd(KEYS.ingress(TENANT), {"stream": "s"})
    one.release_all()
    assert 24 * 3_600_000 < bench.client.pttl(KEYS.ingress(TENANT)) <= 25 * 3_600_000
    two.hold([TENANT])
    assert bench.client.pttl(KEYS.ingress(TENANT)) == -1
    assert bench.client.xlen(KEYS.ingress(TENANT)) == 1


def test_tenants_are_spread_over_the_routers_and_taken_over_when_one_goes(bench: Bench) -> None:
    clock = Clock()
    tenants = [f"t{i}" for i in range(6)]
    one, two = (Leases(bench.forwarder._scripts, KEYS, name, clock) for name in ("one", "two"))
    assert sorted(one.hold(tenants)) == tenants
    assert two.hold(tenants) == {}
    clock.now_s = 2.0
    kept = one.hold(tenants)
    assert len(kept) == 3
    clock.now_s = 4.0
    assert sorted({**two.hold(tenants), **kept}) == tenants
    two.release_all()
    clock.now_s = 6.0
    assert sorted(one.hold(tenants)) == tenants


def test_tenants_are_apart(bench: Bench) -> None:
    bench.beat()
    bench.client.sadd(KEYS.tenants, "one", "two")
    bench.client.xadd(KEYS.ingress("one"), encode(OPEN))
    bench.client.xadd(KEYS.ingress("two"), encode(Append("s1", text="x")))
    bench.forwarder._refresh_at_s = 0.0
    bench.forwarder.turn()
    assert bench.client.exists(KEYS.route("one", "s1"))
    assert not bench.client.exists(KEYS.route("two", "s1"))
    ((_, fields),) = bench.client.xrange(KEYS.rejected("two"))
    assert fields[b"code"] == b"unknown_stream"


def test_assigning_again_fences_the_last_attempt_and_keeps_the_state(bench: Bench) -> None:
    bench.beat()
    bench.beat("pod-1", "bb")
    bench.send(OPEN, Finish("s1"))
    bench.forward()
    bench.forwarder.turn()
    keys = [KEYS.lease(TENANT), KEYS.route(TENANT, "s1"), f"{KEYS.prefix}:held:{TENANT}"]
    epoch = bench.forwarder.leases.hold([TENANT])[TENANT]

    def assign(attempt: int, incarnation: str = "bb", epoch: str | None = epoch) -> Any:
        arguments = [epoch, KEYS.prefix, TENANT, "s1", attempt, "pod-1", incarnation, 1000, 2, 5000]
        return bench.forwarder._scripts.call("assign", keys, arguments)

    with pytest.raises(Fenced):
        assign(1, epoch="1")
    with pytest.raises(Stale):
        assign(0)
    with pytest.raises(Unfit):
        assign(1, incarnation="cc")
    assert assign(1) == 2
    assert bench.route()[b"attempt"] == b"2"
    assert bench.route()[b"state"] == b"finishing"
    assert bench.log("pod-1", "bb") == [
        {b"op": b"adopt", b"tenant": b"default", b"stream": b"s1", b"attempt": b"2", b"upto": b"2"}
    ]
    bench.client.hset(KEYS.route(TENANT, "s1"), "state", "ended")
    with pytest.raises(Ended):
        assign(2)
