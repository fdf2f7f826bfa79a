"""Entries reach their session once and in order, from the log and from the stream's own entries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis.asyncio
from served_pod import StandInRouter

from stream2llm.entries import Append, Entry, Open
from stream2llm.errors import ErrorCode
from stream2llm.keys import PoolKeys
from stream2llm_pod.serving.clocks import RedisClock
from stream2llm_pod.serving.intake import Intake

pytestmark = pytest.mark.redis


@dataclass
class Recorder:
    attempt: int
    applied_seq: int = 1
    over: bool = False
    got: list[Entry] = field(default_factory=list)
    refused: list[ErrorCode] = field(default_factory=list)

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

    def texts(self) -> list[str | None]:
        return [entry.text for entry in self.got if isinstance(entry, Append)]


def run(server: Any, body: Callable[[Intake, StandInRouter, list[Recorder]], Awaitable[None]]) -> None:
    async def inner() -> None:
        opened: list[Recorder] = []

        def open_session(tenant: str, opening: Open, attempt: int, opened_ms: int) -> Recorder:
            opened.append(Recorder(attempt))
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
        assert [session.texts() for session in opened] == [[]]
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
