"""The reply, heartbeat and retire scripts and their writers against real servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis
import redis.asyncio

from stream2llm.keys import PoolKeys
from stream2llm_pod.serving import scripts
from stream2llm_pod.serving.clocks import RedisClock
from stream2llm_pod.serving.heartbeats import Capacity, Figures, Heartbeats, Identity, Load
from stream2llm_pod.serving.replies import Reply, ReplyEvent, ReplyWriter

pytestmark = pytest.mark.redis
KEYS = PoolKeys()
NAMES = (
    KEYS.route("t", "s"),
    KEYS.reply("t", "s"),
    KEYS.entries("t", "s"),
    KEYS.usage("t"),
    KEYS.assigned("p", "i"),
)
OPEN_ID = "7-0"
TOKEN, DONE = ("token", "{}", 0), ("done", "{}", 1, -1, 0)


def reply(
    client: redis.Redis,
    attempt: int,
    *events: tuple[Any, ...],
    maxlen: int = 1000,
    incarnation: str = "i",
    open_id: str = OPEN_ID,
    number: int | None = None,
) -> Any:
    arguments = [argument for event in events for argument in event] + ([] if number is None else [number])
    fence = (attempt, incarnation, open_id, 5000)
    return client.eval(scripts.load("reply").source, len(NAMES), *NAMES, *fence, 60_000, maxlen, "t:s", 3, *arguments)


def lose(client: redis.Redis, attempt: int = 1) -> Any:
    arguments = (attempt, "i", OPEN_ID, 5000, '{"code":"lost"}', "t:s")
    return client.eval(scripts.load("lose").source, len(NAMES), *NAMES, *arguments)


@pytest.fixture
def client(server: Any) -> redis.Redis:
    client: redis.Redis = server.client()
    route = {"state": "open", "attempt": 1, "seq": 3, "digest": "d", "incarnation": "i", "open_id": OPEN_ID, "bytes": 9}
    client.hset(NAMES[0], mapping=route)
    client.hset(NAMES[3], mapping={"streams": 2, "bytes": 12})
    client.hset(NAMES[4], "t:s", 0)
    client.pexpire(NAMES[0], 10_000)
    client.xadd(NAMES[2], {"op": "open"})
    return client


def written(client: redis.Redis) -> list[str]:
    return [fields[b"event"].decode() for _, fields in client.xrange(NAMES[1])]


def test_events_in_order_and_the_end(client: redis.Redis) -> None:
    assert reply(client, 1, ("accepted", "{}", 0, -1, 0)) == 1
    assert client.pttl(NAMES[0]) > 50_000
    assert client.pttl(NAMES[1]) > 50_000
    assert reply(client, 1, (*TOKEN, 0, 1), (*TOKEN, 1, 3), DONE) == 3
    assert written(client) == ["accepted", "token", "token", "done"]
    route = client.hgetall(NAMES[0])
    assert (route[b"state"], route[b"next_token"], route[b"digest"]) == (b"ended", b"4", b"d")
    assert route[b"prompt_seq"] == b"3"
    assert client.hgetall(NAMES[3]) == {b"streams": b"1", b"bytes": b"3"}
    assert not client.exists(NAMES[4])
    assert not client.exists(NAMES[2])
    assert 0 < client.pttl(NAMES[0]) <= 5000
    assert 0 < client.pttl(NAMES[1]) <= 5000


def test_first_terminal_event_wins(client: redis.Redis) -> None:
    reply(client, 1, DONE)
    with pytest.raises(redis.ResponseError, match="ENDED"):
        reply(client, 1, ("error", "{}", 1, -1, 0))
    assert written(client) == ["done"]


def test_nothing_is_written_after_a_terminal_event_of_the_same_batch(client: redis.Redis) -> None:
    assert reply(client, 1, DONE, (*TOKEN, 0, 1)) == 1


@pytest.mark.parametrize("attempt", [0, 2])
def test_other_attempts_are_fenced(client: redis.Redis, attempt: int) -> None:
    with pytest.raises(redis.ResponseError, match="FENCED"):
        reply(client, attempt, (*TOKEN, 0, 1))
    assert written(client) == []


@pytest.mark.parametrize("other", [{"incarnation": "j"}, {"open_id": "8-0"}])
def test_the_attempt_of_another_pod_or_another_stream_is_fenced(client: redis.Redis, other: dict[str, Any]) -> None:
    with pytest.raises(redis.ResponseError, match="FENCED"):
        reply(client, 1, (*TOKEN, 0, 1), **other)
    assert written(client) == []


def test_a_route_that_is_gone_stays_gone(client: redis.Redis) -> None:
    client.delete(NAMES[0])
    with pytest.raises(redis.ResponseError, match="GONE"):
        reply(client, 1, (*TOKEN, 0, 1))
    assert not client.exists(*NAMES[:2])


def test_a_loss_is_told_once_and_ends_the_stream(client: redis.Redis) -> None:
    assert lose(client) == 1
    assert written(client) == ["error"]
    assert client.hget(NAMES[0], "state") == b"ended"
    assert client.hgetall(NAMES[3]) == {b"streams": b"1", b"bytes": b"3"}
    assert not client.exists(NAMES[2], NAMES[4])
    assert lose(client) == 0
    assert written(client) == ["error"]


def test_a_loss_is_told_where_redis_has_forgotten_the_route(client: redis.Redis) -> None:
    client.delete(*NAMES)
    assert lose(client) == 1
    assert written(client) == ["error"]
    assert 0 < client.pttl(NAMES[0]) <= 5000
    assert not client.exists(NAMES[3])


def test_a_stream_in_other_hands_is_not_lost(client: redis.Redis) -> None:
    assert lose(client, attempt=2) == 0
    assert written(client) == []


def test_repeated_tokens_are_skipped_and_gaps_refused(client: redis.Redis) -> None:
    reply(client, 1, (*TOKEN, 0, 2), (*TOKEN, 2, 1))
    assert reply(client, 1, (*TOKEN, 0, 2), (*TOKEN, 2, 1), (*TOKEN, 3, 1)) == 1
    with pytest.raises(redis.ResponseError, match="GAP 4"):
        reply(client, 1, (*TOKEN, 5, 1))
    assert len(written(client)) == 3


TEXT_ONLY, PREFILL = ("token", '{"text":"é"}', 0), ("prefill", "{}", 0, -1, 0)


def test_no_event_is_repeated_whether_or_not_it_has_tokens(client: redis.Redis) -> None:
    """Once a bug: the end of a character, or of a text held back for a stop string, comes without a token, and was
    written again when the answer to the first try was lost."""
    batch = (PREFILL, (*TOKEN, 0, 1), (*TEXT_ONLY, 1, 0))
    assert reply(client, 1, *batch, number=0) == 3
    assert reply(client, 1, *batch, number=0) == 0
    # By then there is more to say.
    assert reply(client, 1, *batch, (*TEXT_ONLY, 1, 0), PREFILL, number=0) == 2
    assert reply(client, 1, (*TEXT_ONLY, 1, 0), PREFILL, (*TOKEN, 1, 2), number=3) == 1
    assert reply(client, 1, (*TEXT_ONLY, 3, 0), DONE, number=6) == 2
    assert written(client) == ["prefill", "token", "token", "token", "prefill", "token", "token", "done"]


def test_another_attempt_counts_its_own_events(client: redis.Redis) -> None:
    assert reply(client, 1, PREFILL, (*TOKEN, 0, 1), number=0) == 2
    client.hset(NAMES[0], "attempt", 2)
    assert reply(client, 2, PREFILL, number=0) == 1
    assert reply(client, 2, PREFILL, (*TOKEN, 0, 1), (*TOKEN, 1, 1), number=0) == 1
    assert written(client) == ["prefill", "token", "prefill", "token"]


def test_events_before_a_gap_are_no_reason_to_skip_what_follows(client: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="GAP 1"):
        reply(client, 1, (*TOKEN, 0, 1), (*TOKEN, 4, 1), number=0)
    assert reply(client, 1, (*TOKEN, 0, 1), (*TOKEN, 1, 1), number=0) == 1


def run(server: Any, body: Callable[[redis.asyncio.Redis], Awaitable[None]]) -> None:
    async def inner() -> None:
        connection: redis.asyncio.Redis = redis.asyncio.Redis(port=server.port, protocol=2)
        try:
            async with asyncio.timeout(30):
                await body(connection)
        finally:
            await connection.aclose()

    asyncio.run(inner())


def test_writer_loads_its_script_and_survives_a_restart(server: Any, client: redis.Redis) -> None:
    async def body(connection: redis.asyncio.Redis) -> None:
        writer = ReplyWriter(connection, KEYS, pod="p", retain_ms=5000, max_events=1000)
        task = asyncio.create_task(writer.run())
        lost: list[int] = []
        one = Reply("t", "s", 1, "i", OPEN_ID, 60_000, lambda: lost.append(1))
        for i in range(300):
            writer.send(one, ReplyEvent("token", "{}", first_token=i, tokens=1))
        await writer.drained()
        await asyncio.to_thread(server.restart)
        for i in range(300, 500):
            writer.send(one, ReplyEvent("token", "{}", first_token=i, tokens=1))
        writer.send(one, ReplyEvent("done", "{}", terminal=True))
        writer.send(one, ReplyEvent("error", "{}", terminal=True))
        await writer.drained()
        assert one.closed.is_set()
        assert lost == []
        task.cancel()

    run(server, body)
    assert written(client)[-2:] == ["token", "done"]
    assert client.hget(NAMES[0], "next_token") == b"500"


def test_writer_repeats_nothing_when_answers_are_lost(server: Any, client: redis.Redis) -> None:
    """Redis has done what it was told; the connection breaks before it can say so."""

    async def body(connection: redis.asyncio.Redis) -> None:
        lost_answers = 2
        make_pipeline = connection.pipeline

        def pipeline(**options: Any) -> Any:
            made = make_pipeline(**options)
            execute = made.execute

            async def executed(**how: Any) -> Any:
                nonlocal lost_answers
                results = await execute(**how)
                if not any(isinstance(result, Exception) for result in results) and lost_answers:
                    lost_answers -= 1
                    raise redis.ConnectionError("the connection broke")
                return results

            made.execute = executed
            return made

        connection.pipeline = pipeline  # type: ignore[method-assign]
        writer = ReplyWriter(connection, KEYS, pod="p", retain_ms=5000, max_events=1000)
        task = asyncio.create_task(writer.run())
        one = Reply("t", "s", 1, "i", OPEN_ID, 60_000, lambda: pytest.fail("dropped"))
        for event in (ReplyEvent("accepted", "{}"), ReplyEvent("token", "{}", first_token=0, tokens=1)):
            writer.send(one, event)
        writer.send(one, ReplyEvent("token", "{}", first_token=1, tokens=0))
        await writer.drained()
        assert lost_answers == 0
        assert one.written_events == 3
        writer.send(one, ReplyEvent("token", "{}", first_token=1, tokens=0))
        writer.send(one, ReplyEvent("done", "{}", terminal=True))
        await writer.drained()
        task.cancel()

    run(server, body)
    assert written(client) == ["accepted", "token", "token", "token", "done"]


@pytest.mark.parametrize(
    ("setting", "bad", "good"), [("maxmemory", "1mb", "0"), ("min-replicas-to-write", "1", "0")], ids=["full", "alone"]
)
def test_writer_waits_while_the_server_takes_no_writes(
    server: Any, client: redis.Redis, setting: str, bad: str, good: str
) -> None:
    """A server that waits for its replicas made a pod give its streams up as lost."""

    async def body(connection: redis.asyncio.Redis) -> None:
        writer = ReplyWriter(connection, KEYS, pod="p", retain_ms=5000, max_events=1000)
        task = asyncio.create_task(writer.run())
        one = Reply("t", "s", 1, "i", OPEN_ID, 60_000, lambda: pytest.fail("dropped"))
        client.config_set(setting, bad)
        try:
            writer.send(one, ReplyEvent("accepted", "{}"))
            for _ in range(20):
                await asyncio.sleep(0.02)
                assert written(client) == []
        finally:
            client.config_set(setting, good)
        writer.send(one, ReplyEvent("done", "{}", terminal=True))
        await writer.drained()
        task.cancel()

    run(server, body)
    assert written(client) == ["accepted", "done"]


def test_writer_drops_a_fenced_reply_and_goes_on_with_others(server: Any, client: redis.Redis) -> None:
    client.hset(
        KEYS.route("t", "other"), mapping={"state": "open", "attempt": 1, "incarnation": "i", "open_id": OPEN_ID}
    )

    async def body(connection: redis.asyncio.Redis) -> None:
        writer = ReplyWriter(connection, KEYS, pod="p", retain_ms=5000, max_events=1000)
        task = asyncio.create_task(writer.run())
        lost: list[str] = []
        fenced = Reply("t", "s", 9, "i", OPEN_ID, 60_000, lambda: lost.append("s"))
        fine = Reply("t", "other", 1, "i", OPEN_ID, 60_000, lambda: lost.append("other"))
        for one in (fenced, fine):
            writer.send(one, ReplyEvent("accepted", "{}"))
            writer.send(one, ReplyEvent("done", "{}", terminal=True))
        await writer.drained()
        assert lost == ["s"]
        task.cancel()

    run(server, body)
    assert written(client) == []
    assert client.xlen(KEYS.reply("t", "other")) == 2


def test_heartbeat_and_retire(server: Any, client: redis.Redis) -> None:
    identity = Identity("p", "abc", "f", ("m",), 100, Capacity(8, 1000), "http://10.0.0.1:8000")
    state = "ready"

    async def body(connection: redis.asyncio.Redis) -> None:
        nonlocal state
        clock = RedisClock(monotonic=lambda: 5.0, wall=lambda: 0.0)
        figures = Figures(3, 1, 70, {"p50": 12.0, "p95": 30.0, "count": 9})
        load = Load(2, 30, 0.25)
        beats = Heartbeats(connection, KEYS, identity, clock, lambda: state, lambda: load, lambda: figures, lambda: "")
        await beats.beat()
        beat = json.loads(client.hget(KEYS.pods, "p") or b"")
        seconds, _ = client.time()
        assert abs(beat.pop("time_ms") - seconds * 1000) < 5000
        assert abs(clock.now_ms() - seconds * 1000) < 5000
        assert beat == {
            "incarnation": "abc",
            "protocol": 1,
            "fingerprint": "f",
            "state": "ready",
            "models": ["m"],
            "max_model_len": 100,
            "url": "http://10.0.0.1:8000",
            "capacity": {"max_open_streams": 8, "kv_tokens": 1000},
            "load": {"open_streams": 2, "backlog_tokens": 30, "kv_usage": 0.25},
            "figures": {
                "preemptions": {"memory": 3, "policy": 1},
                "recomputed_tokens": 70,
                "ttft_ms": {"p50": 12.0, "p95": 30.0, "count": 9},
            },
            "prefill_tokens_per_s": None,
        }
        state = "draining"
        client.xadd(KEYS.log("p", "abc"), {"op": "adopt"})
        await beats.beat()
        assert json.loads(client.hget(KEYS.pods, "p") or b"")["state"] == "draining"
        assert client.pttl(KEYS.log("p", "abc")) > 0
        await beats.retire()
        assert not client.exists(KEYS.pods, KEYS.log("p", "abc"))

    run(server, body)


def registry(incarnation: str) -> tuple[str, ...]:
    return (
        KEYS.pods,
        KEYS.log("p", incarnation),
        KEYS.incarnations,
        KEYS.gone,
        KEYS.assigned("p", incarnation),
    )


def retire(client: redis.Redis, incarnation: str) -> Any:
    return client.eval(scripts.load("retire").source, 5, *registry(incarnation), "p", incarnation, 0, 90_000_000)


def test_retire_leaves_a_newer_incarnation_alone(client: redis.Redis) -> None:
    client.hset(KEYS.pods, "p", '{"incarnation":"newer"}')
    client.sadd(KEYS.incarnations, "p:newer", "p:abc")
    assert retire(client, "abc") == 0
    assert client.hexists(KEYS.pods, "p")
    assert client.smembers(KEYS.incarnations) == {b"p:newer"}


def test_a_pod_that_retires_with_streams_leaves_them_to_the_routers(client: redis.Redis) -> None:
    client.hset(KEYS.pods, "p", '{"incarnation":"abc"}')
    client.sadd(KEYS.incarnations, "p:abc")
    client.hset(KEYS.assigned("p", "abc"), "t:s", 0)
    assert retire(client, "abc") == 1
    assert client.smembers(KEYS.gone) == {b"p:abc"}
    assert client.hgetall(KEYS.assigned("p", "abc")) == {b"t:s": b"0"}


def heartbeats(connection: redis.asyncio.Redis, incarnation: str, fenced: Callable[[], str]) -> Heartbeats:
    identity = Identity("p", incarnation, "f", ("m",), 100, Capacity(8, 1000), "")
    return Heartbeats(
        connection, KEYS, identity, RedisClock(), lambda: "ready", lambda: Load(0, 0, 0.0), Figures, fenced
    )


def test_a_pod_that_was_given_up_registers_as_another_incarnation(server: Any, client: redis.Redis) -> None:
    async def body(connection: redis.asyncio.Redis) -> None:
        beats = heartbeats(connection, "one", lambda: "two")
        await beats.beat()
        await beats.beat()
        assert beats.registered
        client.hdel(KEYS.pods, "p")
        await beats.beat()
        assert not beats.registered
        assert not client.hexists(KEYS.pods, "p")
        await beats.beat()
        assert beats.registered
        assert json.loads(client.hget(KEYS.pods, "p") or b"")["incarnation"] == "two"
        assert client.smembers(KEYS.incarnations) == {b"p:one", b"p:two"}

    run(server, body)


def test_a_beat_that_meets_the_retirement_is_no_reason_to_begin_anew(server: Any, client: redis.Redis) -> None:
    """A pod without streams that was told to leave registered again while it stopped, and then never ended."""

    async def body(connection: redis.asyncio.Redis) -> None:
        fenced: list[str] = []

        def begin_anew() -> str:
            fenced.append("one")
            return "two"

        beats = heartbeats(connection, "one", begin_anew)
        await beats.beat()
        beating = asyncio.create_task(beats.run())
        # As a drain of no streams does: what the heartbeat says has changed, and then there is nothing to wait for.
        beats.soon()
        await asyncio.sleep(0)
        await beats.retire()
        async with asyncio.timeout(60):
            await beating
        await beats.beat()
        assert fenced == []
        assert not client.exists(KEYS.pods, KEYS.incarnations)

    run(server, body)


def test_of_two_pods_of_one_name_the_later_one_stays(server: Any, client: redis.Redis) -> None:
    async def body(connection: redis.asyncio.Redis) -> None:
        fenced: list[str] = []

        def begin_anew() -> str:
            fenced.append("old")
            return "old-2"

        old, new = heartbeats(connection, "old", begin_anew), heartbeats(connection, "new", lambda: "never")
        for _ in range(3):
            await old.beat()
        await new.beat()
        for _ in range(3):
            await old.beat()
            await new.beat()
        assert (old.registered, new.registered, fenced) == (False, True, ["old"])
        assert json.loads(client.hget(KEYS.pods, "p") or b"")["incarnation"] == "new"
        await new.retire()
        await old.beat()
        await old.beat()
        assert old.registered
        assert json.loads(client.hget(KEYS.pods, "p") or b"")["incarnation"] == "old-2"

    run(server, body)
