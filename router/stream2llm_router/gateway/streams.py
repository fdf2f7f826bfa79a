"""The streams of a pool as the gateway reads and writes them in Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TypeVar

import redis.asyncio
from redis.exceptions import RedisError

from stream2llm import settings
from stream2llm.composing import Fields
from stream2llm.entries import Open, parse_entry
from stream2llm.following import BATCH_EVENTS
from stream2llm.keys import DEFAULT_TENANT, PoolKeys
from stream2llm.retrying import Retrying
from stream2llm.tokens import TokenRecord, parse_record
from stream2llm_router.gateway.problems import refused

CONNECTIONS = 16
"""Commands in flight at a time; more wait, so that many readers do not become many connections."""

RawEvent = tuple[bytes, dict[bytes, bytes]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """What Redis knows of one stream. state: its route's, None without a route."""

    has_reply: bool
    state: str | None
    ingress_entries: int

    @property
    def unknown(self) -> bool:
        """It was never opened, or all of it has expired."""
        return not self.has_reply and self.state is None and self.ingress_entries == 0

    @property
    def may_go_on(self) -> bool:
        """More events may come: it has not ended, or its open may still be on its way."""
        return self.state not in (None, "ended") or (self.state is None and self.ingress_entries > 0)


class Streams:
    """All calls may raise Unreachable and RedisRefused; every one of them can be repeated without harm."""

    def __init__(self, client: redis.asyncio.Redis, keys: PoolKeys) -> None:
        """`client` retries nothing by itself."""
        self._client, self.keys = client, keys
        self._free = asyncio.Semaphore(CONNECTIONS)
        source = (files("stream2llm_router.gateway") / "scripts" / "enqueue.lua").read_text()
        self._enqueue = client.register_script(source)

    async def call(self, command: Callable[[], Awaitable[T]], tries: int | None = settings.SEND_TRIES) -> T:
        """The command's answer, tried again while Redis is away: so often, or None for as long as readers wait."""
        retrying = Retrying(tries, outage_s=settings.READ_OUTAGE_S)
        while True:
            try:
                async with self._free:
                    return await command()
            except RedisError as error:
                await asyncio.sleep(retrying.failed(error))

    async def enqueue(self, tenant: str, fields: Fields) -> str:
        """Write one checked entry; its ingress id, '' if nothing was left to do. Raises Problem if it is refused."""
        op, stream = fields[b"op"].decode(), fields[b"stream"].decode()
        entry = parse_entry(fields)
        digest = entry.digest if isinstance(entry, Open) else ""
        keys = [self.keys.ingress(tenant), self.keys.route(tenant, stream)]
        arguments: list[Any] = [op, digest]
        for name, value in fields.items():
            arguments += [name, value]
        code, entry_id = await self.call(lambda: self._enqueue(keys=keys, args=arguments))
        if code:
            raise refused(code.decode(), stream)
        return str(entry_id.decode())

    async def find(self, tenant: str, stream: str) -> Whereabouts:
        keys = self.keys

        async def ask() -> list[Any]:
            pipeline = self._client.pipeline(transaction=True)
            pipeline.exists(keys.reply(tenant, stream))
            pipeline.hget(keys.route(tenant, stream), "state")
            pipeline.xlen(keys.ingress(tenant))
            answer: list[Any] = await pipeline.execute()
            return answer

        reply, state, waiting = await self.call(ask)
        return Whereabouts(bool(reply), None if state is None else state.decode("utf-8", "replace"), int(waiting))

    async def states(self, tenant: str, streams: list[str]) -> dict[str, str | None]:
        """The state of each stream's route."""

        async def ask() -> list[Any]:
            pipeline = self._client.pipeline(transaction=False)
            for stream in streams:
                pipeline.hget(self.keys.route(tenant, stream), "state")
            answer: list[Any] = await pipeline.execute()
            return answer

        states = await self.call(ask)
        return {
            stream: None if state is None else state.decode("utf-8", "replace")
            for stream, state in zip(streams, states, strict=True)
        }

    async def read(self, key: str, after: str) -> list[RawEvent]:
        """The events after `after` that are there now, at most BATCH_EVENTS."""
        answer: Any = await self.call(lambda: self._client.xread({key: after}, count=BATCH_EVENTS), tries=None)
        return [event for _, events in answer or () for event in events]

    async def record(self, digest: str) -> TokenRecord | None:
        """The stored token of a digest. ValueError for one that cannot be read."""
        value: Any = await self.call(lambda: _awaited(self._client.hget(self.keys.tokens, digest)))
        return None if value is None else parse_record(digest, value)

    async def serves(self, tenant: str) -> bool:
        """Whether routers serve the tenant."""
        members: Any = await self.call(lambda: _awaited(self._client.smembers(self.keys.tenants)))
        return tenant.encode() in members if members else tenant == DEFAULT_TENANT

    async def heartbeats(self) -> tuple[dict[str, bytes], int]:
        """Raw heartbeats by pod, and the server's time in ms."""

        async def ask() -> list[Any]:
            pipeline = self._client.pipeline(transaction=False)
            pipeline.hgetall(self.keys.pods)
            pipeline.time()
            answer: list[Any] = await pipeline.execute()
            return answer

        beats, (seconds, micros) = await self.call(ask, tries=1)
        return {name.decode("utf-8", "replace"): beat for name, beat in beats.items()}, seconds * 1000 + micros // 1000

    async def unblock(self, connection_id: int) -> None:
        """Cut another connection's blocking read short. Raises RedisError."""
        await self._client.client_unblock(connection_id)

    async def close(self) -> None:
        await self._client.aclose()


async def _awaited(answer: Any) -> Any:
    """redis-py types one class for both clients."""
    return await answer
