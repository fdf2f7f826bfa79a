"""The client for asyncio. The same calls as `Client`, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

from stream2llm import settings
from stream2llm.composing import (
    Answer,
    AnswerBuilder,
    ContextLike,
    Fields,
    append_fields,
    cancel_fields,
    finish_fields,
    new_id,
    open_fields,
    update_fields,
)
from stream2llm.connecting import DEFAULT_URL, RedisTLS, check_answers_bytes, connect_async
from stream2llm.entries import StreamOptions
from stream2llm.events import Event
from stream2llm.following import BATCH_EVENTS, START, Following
from stream2llm.keys import DEFAULT_POOL, DEFAULT_TENANT, PoolKeys, check_tenant
from stream2llm.retrying import Retrying


class AsyncClient:
    """Opens streams in one pool for one tenant, in one event loop. See `Client`."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        pool: str = DEFAULT_POOL,
        tenant: str = DEFAULT_TENANT,
        password_file: str | None = None,
        tls: RedisTLS | None = None,
        connection: redis.asyncio.Redis | None = None,
    ) -> None:
        self.keys = PoolKeys(pool)
        self.tenant = check_tenant(tenant)
        if connection is None:
            connection = connect_async(url, password_file, tls=tls, retries=0, allow_password=True)
        check_answers_bytes(connection)
        self._redis = connection

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """See `Client.close`."""
        await self._redis.aclose()

    async def open(
        self,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        prompt: str | None = None,
        params: Mapping[str, Any] | None = None,
        options: StreamOptions | Mapping[str, Any] | None = None,
        stream: str | None = None,
        traceparent: str = "",
    ) -> AsyncStream:
        """See `Client.open`."""
        name = new_id() if stream is None else stream
        await self.send(open_fields(name, messages, prompt, params, options, traceparent))
        return AsyncStream(self, name)

    def stream(self, name: str) -> AsyncStream:
        """A handle on a stream that was opened elsewhere."""
        return AsyncStream(self, name)

    async def send(self, fields: Fields, *, tries: int = settings.SEND_TRIES) -> str:
        """See `Client.send`."""
        retrying = Retrying(tries)
        while True:
            try:
                entry_id: Any = await self._redis.xadd(self.keys.ingress(self.tenant), fields)  # type: ignore[arg-type]
                return str(entry_id.decode())
            except RedisError as error:
                await asyncio.sleep(retrying.failed(error))

    async def follow(self, place: Following) -> AsyncIterator[tuple[str, Event]]:
        """See `Client.follow`."""
        retrying = Retrying(None, outage_s=settings.READ_OUTAGE_S)
        while not place.ended:
            try:
                answer: Any = await self._redis.xread(
                    {place.key: place.after}, count=BATCH_EVENTS, block=place.block_ms()
                )
                exists = bool(answer or await self._redis.exists(place.key))
            except RedisError as error:
                place.check()
                await asyncio.sleep(retrying.failed(error))
                continue
            retrying.succeeded()
            for found in place.take(answer, exists=exists):
                yield found


class AsyncStream:
    """One stream of an AsyncClient; the calls are those of `Stream`."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client, self.name = client, name

    async def append(
        self, text: str | None = None, *, tokens: Iterable[int] | None = None, chunk: str | None = None
    ) -> None:
        """See `Stream.append`."""
        await self._client.send(append_fields(self.name, text, tokens, chunk))

    async def update(self, context: ContextLike, *, version: int | None = None) -> None:
        """See `Stream.update`."""
        await self._client.send(update_fields(self.name, context, version))

    async def finish(
        self,
        text: str | None = None,
        *,
        tokens: Iterable[int] | None = None,
        chunk: str | None = None,
        expect: int | None = None,
    ) -> None:
        """See `Stream.finish`."""
        await self._client.send(finish_fields(self.name, text, tokens, chunk, expect))

    async def cancel(self) -> None:
        """See `Stream.cancel`."""
        await self._client.send(cancel_fields(self.name))

    async def events(
        self,
        *,
        after: str = START,
        timeout_s: float | None = None,
        accept_timeout_s: float | None = settings.ACCEPT_TIMEOUT_S,
    ) -> AsyncIterator[Event]:
        """See `Stream.events`."""
        async for _, event in self.events_with_ids(after=after, timeout_s=timeout_s, accept_timeout_s=accept_timeout_s):
            yield event

    def events_with_ids(
        self,
        *,
        after: str = START,
        timeout_s: float | None = None,
        accept_timeout_s: float | None = settings.ACCEPT_TIMEOUT_S,
    ) -> AsyncIterator[tuple[str, Event]]:
        """See `Stream.events_with_ids`."""
        client = self._client
        place = Following(
            client.keys,
            client.tenant,
            self.name,
            after=after,
            timeout_s=timeout_s,
            accept_timeout_s=accept_timeout_s,
        )
        return client.follow(place)

    async def answer(
        self, *, timeout_s: float | None = None, accept_timeout_s: float | None = settings.ACCEPT_TIMEOUT_S
    ) -> Answer:
        """See `Stream.answer`."""
        builder = AnswerBuilder()
        async for event in self.events(timeout_s=timeout_s, accept_timeout_s=accept_timeout_s):
            builder.take(event)
        return builder.complete()
