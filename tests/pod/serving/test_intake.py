"""Entries reach their session once and in order, from the log and from the stream's own entries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis.asyncio
from served_pod import StandInRouter

from stream2llm.entries import Append, Entry, EntryRules, Open
from stream2llm.errors import ErrorCode
from stream2llm.events import Accepted, ErrorEvent, Token, encode
from stream2llm.keys import PoolKeys
from stream2llm_pod.serving.carrying import Carried
from stream2llm_pod.serving.clocks import RedisClock
from stream2llm_pod.serving.intake import MAX_PENDING_BYTES, Adoption, Intake

pytestmark = pytest.mark.redis


@dataclass
class Recorder:
    adoption: Adoption
    applied_seq: int = 1
    over: bool = False
    got: list[Entry] = field(default_factory=list)
    refused: list[ErrorCode] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    pending_bytes: int = 0
    opening: Open | None = None

    @property
    def attempt(self) -> int:
        return self.adoption.attempt

    @property
    def open_id(self) -> str:
        return self.adoption.open_id

    def deliver(self, entry: Entry, seq: int, arrived_ms: int, ingress_id: str) -> None:
        if seq > self.applied_seq:
            self.applied_seq = seq
            self.got.append(entry)

    def skip(self, seq: int) -> None:
        self.applied_seq = max(seq, self.applied_seq)

    def refuse(self, code: ErrorCode, message: str, field: str | None, ingress_id: str | None) -> None:
        self.refused.append(code)

    def drop(self) -> None:
        self.over = True

    def lose(self, message: str) -> None:
        self.lost.append(message)
        self.over = True

    def texts(self) -> list[str | None]:
        return [entry.text for entry in self.got if isinstance(entry, Append)]


def run(server: Any, body: Callable[[Intake, StandInRouter, list[Recorder]], Awaitable[None]]) -> None:
    async def inner() -> None:
        opened: list[Recorder] = []

        def open_session(tenant: str, opening: Open, adoption: Adoption) -> Recorder:
            opened.append(Recorder(adoption, opening=opening))
            return opened[-1]

        connection: redis.asyncio.Redis = redis.asyncio.Redis(port=server.port, protocol=2)
        intake = Intake(connection, PoolKeys(), "p", "i", RedisClock(), open_session)
        router = StandInRouter(server.client(), PoolKeys(), "p", "i")
        try:
            async with asyncio.timeout(30):
                await body(intake, router, opened)
        finally:
            await connection.aclose()

    asyncio.run(inner())


async def take_all(intake: Intake) -> None:
    while await intake.take(block_ms=10):
        pass


def test_adopt_then_log(server: Any) -> None:
    async def body(intake: Intake, router: StandInRouter, opened: list[Recorder]) -> None:
        router.open("s", prompt="{context}")
        router.send("s", "append", text="a")
        router.send("s", "append", text="b")
        await take_all(intake)
        assert [session.texts() for session in opened] == [["a", "b"]]
        assert router.client.xlen(router.log) == 0
        router.send("s", "append", text="c")
        await take_all(intake)
        assert opened[0].texts() == ["a", "b", "c"]

    run(server, body)


def test_an_open_that_names_no_idle_timeout_has_the_pod_s(server: Any) -> None:
    async def body(intake: Intake, router: StandInRouter, opened: list[Recorder]) -> None:
        intake.rules = EntryRules(idle_timeout_ms=5_000)
        router.open("s", prompt="{context}")
        router.open("t", prompt="{context}", options={"idle_timeout_ms": 7_000})
        await take_all(intake)
        found = [session.opening.options.idle_timeout_ms for session in opened if session.opening is not None]
        assert found == [5_000, 7_000]

    run(server, body)


def test_adopt_reads_what_came_before_and_the_log_does_not_repeat_it(server: Any) -> None:
    async def body(intake: Intake, router: StandInRouter, opened: list[Recorder]) -> None:
        router.open("s", prompt="{context}")
        router.client.delete(router.log)
        router.send("s", "append", text="a", log=False)
        router.send("s", "append", text="b", log=False)
        router.adopt("s", 1)
        router.send("s", "append", text="c")
        router.adopt("s", 1)
        await take_all(intake)
        assert [session.texts() for session in opened] == [["a", "b", "c"]]

    run(server, body)


def test_a_gap_in_the_log_is_filled_from_the_entries(server: Any) -> None:
    async def body(intake: Intake, router: StandInRouter, opened: list[Recorder]) -> None:
        router.open("s", prompt="{context}")
        router.send("s", "append", text="a", log=False)
        router.send("s", "append", text="b")
        await take_all(intake)
        assert opened[0].texts() == ["a", "b"]

    run(server, body)


def test_other_attempts_and_unknown_streams_are_left_alone(server: Any) -> None:
    async def body(intake: Intake, router: StandInRouter, opened: list[Recorder]) -> None:
        router.open("s", prompt="{context}", attempt=2)
        router.send("s", "append", text="old", attempt=1)
        router.seqs["nobody"] = 4
        router.send("nobody", "append", text="x")
        router.client.xadd(router.log, {"garbage": "1"})
        router.client.xadd(router.log, {"op": "adopt", "tenant": "default", "stream": "gone", "attempt": 1, "upto": 1})
        await take_all(intake)
        assert [session.texts() for session in opened] == [["old"]]
        router.adopt("s", 3)
        await take_all(intake)
        assert opened[0].over
        assert opened[1].texts() == ["old"]

    run(server, body)


def test_an_entry_of_another_version_is_refused_and_counted_as_applied(server: Any) -> None:
    async def body(intake: Intake, router: StandInRouter, opened: list[Recorder]) -> None:
        router.open("s", prompt="{context}")
        router.send("s", "leap")
        router.send("s", "append", text="a")
        await take_all(intake)
        assert (opened[0].refused, opened[0].texts()) == ([ErrorCode.UNKNOWN_OP], ["a"])

    run(server, body)


def test_intake_reads_on_after_an_outage(server: Any) -> None:
    async def body(intake: Intake, router: StandInRouter, opened: list[Recorder]) -> None:
        router.open("s", prompt="{context}")
        task = asyncio.create_task(intake.run())
        while not opened:
            await asyncio.sleep(0.01)
        await asyncio.sleep(1.1)  # the append-only file is written each second
        await asyncio.to_thread(server.restart)
        router.send("s", "append", text="a")
        while opened[0].texts() != ["a"]:
            await asyncio.sleep(0.01)
        task.cancel()

    run(server, body)


def token(index: int, *token_ids: int, text: str) -> dict[str, str]:
    return encode(Token(index, text, token_ids))


def test_a_stream_that_has_been_elsewhere_brings_what_was_sent(server: Any) -> None:
    async def body(intake: Intake, router: StandInRouter, opened: list[Recorder]) -> None:
        router.open("s", prompt="{context}")
        router.client.delete(router.log)
        router.send("s", "append", text="a", log=False)
        router.send("s", "finish", log=False)
        router.send("s", "append", text="late", log=False)
        reply = router.keys.reply("default", "s")
        router.client.xadd(reply, encode(Accepted("q", 1)))
        router.client.xadd(reply, encode(ErrorEvent("malformed", "m", None, False, "7-0")))
        first = router.client.xadd(reply, token(0, 5, 6, text="ab"))
        router.client.xadd(reply, token(2, 7, text="c"))
        router.client.hset(router.keys.route("default", "s"), mapping={"next_token": 3, "prompt_seq": 3})
        router.adopt("s", 2)
        await take_all(intake)
        (session,) = opened
        assert session.adoption == Adoption(
            2,
            "i",
            router.open_ids["s"],
            int(router.open_ids["s"].split("-")[0]),
            Carried((5, 6, 7), "abc", int(first.split(b"-")[0]), frozenset({"7-0"})),
            3,
        )
        assert session.texts() == ["a", "late"]

    run(server, body)


def test_a_stream_brings_its_tenants_weight(server: Any) -> None:
    async def body(intake: Intake, router: StandInRouter, opened: list[Recorder]) -> None:
        limits = router.keys.limits("default")
        for number, raw in enumerate((None, "2.5", "heavy", "-1", "inf")):
            if raw is not None:
                router.client.hset(limits, "weight", raw)
            router.open(f"s{number}", prompt="{context}")
            await take_all(intake)
        router.client.delete(limits)
        router.client.set(limits, "of a foreign type")
        router.open("s9", prompt="{context}")
        await take_all(intake)
        assert [session.adoption.weight for session in opened] == [1.0, 2.5, 1.0, 1.0, 1.0, 1.0]

    run(server, body)


def test_a_reply_that_is_not_whole_loses_the_stream(server: Any) -> None:
    async def body(intake: Intake, router: StandInRouter, opened: list[Recorder]) -> None:
        router.open("s", prompt="{context}")
        router.client.xadd(router.keys.reply("default", "s"), token(0, 5, text="a"))
        router.client.hset(router.keys.route("default", "s"), mapping={"next_token": 2, "prompt_seq": 1})
        router.adopt("s", 2)
        await take_all(intake)
        assert opened[-1].lost == [
            "Redis has lost part of the stream: the reply is not whole: 2 tokens were sent and 1 are there"
        ]

    run(server, body)


def test_entries_that_are_gone_lose_the_stream(server: Any) -> None:
    async def body(intake: Intake, router: StandInRouter, opened: list[Recorder]) -> None:
        router.open("s", prompt="{context}")
        router.client.delete(router.keys.entries("default", "s"))
        await take_all(intake)
        assert opened[0].lost == ["Redis has lost part of the stream: its entries are gone"]

    run(server, body)


def test_another_stream_of_the_same_id_is_another_stream(server: Any) -> None:
    async def body(intake: Intake, router: StandInRouter, opened: list[Recorder]) -> None:
        router.open("s", prompt="{context}")
        await take_all(intake)
        router.client.delete(router.keys.route("default", "s"), router.keys.entries("default", "s"))
        await asyncio.sleep(0.002)
        router.open("s", prompt="again {context}")
        await take_all(intake)
        assert [session.over for session in opened] == [True, False]

    run(server, body)


def test_entries_wait_in_redis_while_too_much_is_pending(server: Any) -> None:
    async def body(intake: Intake, router: StandInRouter, opened: list[Recorder]) -> None:
        router.open("s", prompt="{context}")
        await take_all(intake)
        opened[0].pending_bytes = MAX_PENDING_BYTES + 1
        task = asyncio.create_task(intake.run())
        router.send("s", "append", text="a")
        await asyncio.sleep(0.2)
        assert opened[0].texts() == []
        assert router.client.xlen(router.log) == 1
        opened[0].pending_bytes = 0
        while opened[0].texts() != ["a"]:
            await asyncio.sleep(0.01)
        task.cancel()

    run(server, body)
