"""The client for asyncio. The same calls as `Client`, awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import redis.asyncio
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from stream2llm import settings
from stream2llm.client import SEND_TRIES
from stream2llm.composing import (
    Answer,
    AnswerBuilder,
    ContextLike,
    Fields,
    append_fields,
    cancel_fields,
    finish_fields,
    new_id,
    nobody_answers,
    open_fields,
    update_fields,
)
from stream2llm.connecting import DEFAULT_URL, connect_async
from stream2llm.entries import StreamOptions
from stream2llm.errors import NoAnswer, Unreachable
from stream2llm.events import Event, is_terminal, parse_event
from stream2llm.keys import DEFAULT_POOL, DEFAULT_TENANT, PoolKeys, check_tenant


class AsyncClient:
    """Opens streams in one pool for one tenant, in one event loop. See `Client`."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        pool: str = DEFAULT_POOL,
        tenant: str = DEFAULT_TENANT,
        password_file: str | None = None,
        connection: redis.asyncio.Redis | None = None,
    ) -> None:
        self.keys = PoolKeys(pool)
        self.tenant = check_tenant(tenant)
        self._redis = connection if connection is not None else connect_async(url, password_file, retries=0)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._redis.aclose()

    async def open(
        self,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        prompt: str | None = None,
        params: Mapping[str, Any] | None = None,
        options: StreamOptions | Mapping[str, Any] | None = None,
        stream: str | None = None,
    ) -> AsyncStream:
        """See `Client.open`."""
        name = stream or new_id()
        await self.send(open_fields(name, messages, prompt, params, options))
        return AsyncStream(self, name)

    def stream(self, name: str) -> AsyncStream:
        return AsyncStream(self, name)

    async def send(self, fields: Fields) -> str:
        """See `Client.send`."""
        delay_s = 0.1
        for attempt in range(1, SEND_TRIES + 1):
            try:
                entry_id: Any = await self._redis.xadd(self.keys.ingress(self.tenant), fields)  # type: ignore[arg-type]
                return str(entry_id.decode())
            except (RedisConnectionError, RedisTimeoutError) as error:
                if attempt == SEND_TRIES:
                    raise Unreachable(f"Redis cannot be reached: {error}") from error
                await asyncio.sleep(delay_s)
                delay_s *= 2
        raise AssertionError("not reached")

    async def read(self, stream: str, after: str, block_ms: int) -> list[tuple[str, Event | None]]:
        """See `Client.read`."""
        key = self.keys.reply(self.tenant, stream)
        try:
            answer: Any = await self._redis.xread({key: after}, count=500, block=block_ms)
        except (RedisConnectionError, RedisTimeoutError):
            await asyncio.sleep(min(block_ms / 1000, 0.5))
            return []
        return [(entry_id.decode(), parse_event(fields)) for _, entries in answer or () for entry_id, fields in entries]


class AsyncStream:
    """One stream of an AsyncClient."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client, self.name = client, name

    async def append(
        self, text: str | None = None, *, tokens: Sequence[int] | None = None, chunk: str | None = None
    ) -> None:
        await self._client.send(append_fields(self.name, text, tokens, chunk))

    async def update(self, context: ContextLike, *, version: int | None = None) -> None:
        await self._client.send(update_fields(self.name, context, version))

    async def finish(
        self, text: str | None = None, *, tokens: Sequence[int] | None = None, expect: int | None = None
    ) -> None:
        await self._client.send(finish_fields(self.name, text, tokens, expect))

    async def cancel(self) -> None:
        await self._client.send(cancel_fields(self.name))

    async def events(self, *, after: str = "0", timeout_s: float | None = None) -> AsyncIterator[Event]:
        """Reply events up to the terminal one. timeout_s: longest silence; NoAnswer after it."""
        heard_s, accepted = time.monotonic(), after != "0"
        while True:
            for entry_id, event in await self._client.read(self.name, after, settings.BLOCK_MS):
                heard_s, accepted, after = time.monotonic(), True, entry_id
                if event is not None:
                    yield event
                    if is_terminal(event):
                        return
            if timeout_s is not None and time.monotonic() - heard_s > timeout_s:
                keys = self._client.keys
                raise NoAnswer(nobody_answers(keys.pool, self._client.tenant, self.name, timeout_s, accepted))

    async def answer(self, *, timeout_s: float | None = None) -> Answer:
        """Wait for the whole answer. Raises the stream's error if it ends with one."""
        builder = AnswerBuilder()
        async for event in self.events(timeout_s=timeout_s):
            builder.take(event)
        assert builder.answer is not None
        return builder.answer
