"""What is left of a session that has ended."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import redis.asyncio
from prometheus_client import CollectorRegistry

from stream2llm.entries import Append, Finish, Open
from stream2llm.keys import PoolKeys
from stream2llm_pod.serving.assembling import Span, Template
from stream2llm_pod.serving.clocks import RedisClock
from stream2llm_pod.serving.intake import Adoption
from stream2llm_pod.serving.metrics import ServingMetrics
from stream2llm_pod.serving.replies import ReplyWriter
from stream2llm_pod.serving.session import Prepared, ServingContext, Session


class Letters:
    """A tokenizer with one token a character."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        return [ord(letter) for letter in text]

    def encode_with_spans(self, text: str) -> tuple[list[int], list[Span]] | None:
        return self.encode(text, special=False), [(i, i + 1) for i in range(len(text))]

    def leading(self) -> list[int]:
        return []


@dataclass
class ScriptedEngine:
    """Answers each finished prompt with one token."""

    finished: dict[str, asyncio.Event] = field(default_factory=dict)

    async def open(self, stream_id: str, token_ids: Sequence[int], params: Any, **_: Any) -> AsyncIterator[Any]:
        self.finished[stream_id] = asyncio.Event()
        return self._outputs(stream_id)

    async def _outputs(self, stream_id: str) -> AsyncIterator[Any]:
        await self.finished[stream_id].wait()
        completion = SimpleNamespace(token_ids=[65], text="A", finish_reason="length", stop_reason=None)
        yield SimpleNamespace(outputs=[completion], finished=True)
        del self.finished[stream_id]

    async def append(self, stream_id: str, token_ids: Sequence[int]) -> None:
        return

    async def update(self, stream_id: str, token_ids: Sequence[int]) -> None:
        return

    async def finish(self, stream_id: str, token_ids: Sequence[int] | None = None) -> None:
        self.finished[stream_id].set()

    async def abort(self, stream_id: str) -> None:
        self.finished.pop(stream_id, None)

    def progress(self, stream_id: str) -> tuple[int, int]:
        return 0, 0


async def _prepared(opening: Open) -> Prepared:
    return Prepared(SimpleNamespace(max_tokens=1), Template.of_prompt(opening.prompt or "", "{context}"))


def context(replies: ReplyWriter) -> ServingContext:
    return ServingContext(
        pod="p",
        engine=ScriptedEngine(),
        encoder=Letters(),
        prepare=_prepared,
        explain=lambda error: None,
        engine_died=lambda error: False,
        stats_of=lambda output: None,
        replies=replies,
        clock=RedisClock(),
        metrics=ServingMetrics("default/default", "p", CollectorRegistry()),
        max_model_len=1000,
        vocabulary_tokens=1000,
        cache_salt=lambda tenant: tenant,
    )


@pytest.mark.redis
def test_a_session_that_has_ended_leaves_without_the_garbage_collector(redis_server: Any) -> None:
    """A pod freezes what it has when it begins, so a full collection is rare: with a ring of references, here through
    the reply that tells its session of a fence, tens of prompts waited for one, and memory grew by their size."""

    async def run() -> list[str]:
        client = redis.asyncio.Redis(port=redis_server.port, protocol=2)
        writer = ReplyWriter(client, PoolKeys(), pod="p", retain_ms=1000, max_events=100)
        ctx = context(writer)
        left = []
        for number, ends in enumerate(("answered", "dropped", "lost")):
            session = Session("t", Open(f"s{number}", prompt="{context}"), Adoption(1, "i", "7-0", 7), ctx)
            serving = asyncio.create_task(session.run())
            session.deliver(Append(f"s{number}", text="some words of context"), 2, 7, "7-1")
            if ends == "answered":
                session.deliver(Finish(f"s{number}"), 3, 7, "7-2")
            else:
                await asyncio.sleep(0)
                session.drop() if ends == "dropped" else session.lose("gone")
            await serving
            assert session.over
            there = weakref.ref(session)
            del session, serving
            if there() is not None:
                left.append(ends)
        await client.aclose()
        return left

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(run()) == []
    finally:
        gc.enable()
