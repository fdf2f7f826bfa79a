"""One Redis connection that follows all replies which anybody reads over HTTP.

A reader takes its events from a queue of its own. Whoever is too slow for a bounded one leaves the common read and
catches up by itself, so a slow reader costs the others nothing and this process a bounded amount of memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError, ResponseError

from stream2llm import settings
from stream2llm.ending import end_tasks
from stream2llm_router.gateway.streams import RawEvent, Streams

logger = logging.getLogger(__name__)

MAX_QUEUED_EVENTS = 1_000
READ_EVENTS = 200
"""Of one reply at a time."""
WAKE_S = 0.01
PAUSE_PER_KEY_S = 20e-6
LONGEST_PAUSE_S = 0.02
"""With many replies the read itself is work, so a few more events are let come for it."""


class Reading:
    """One reader's place in one reply."""

    def __init__(self, key: str, after: str) -> None:
        self.key, self.after = key, after
        self.events: deque[RawEvent] = deque()
        self.behind = False
        """The queue was full: what comes after it must be read from Redis."""
        self.news = asyncio.Event()

    def push(self, events: list[RawEvent]) -> None:
        place = entry_order(self.after)
        fresh = [event for event in events if entry_order(event[0].decode()) > place]
        if len(self.events) + len(fresh) > MAX_QUEUED_EVENTS:
            self.behind = True
        elif fresh:
            self.events.extend(fresh)
            self.after = fresh[-1][0].decode()
        if fresh:
            self.news.set()


class Hub:
    """Readers join at their place; `run` reads for all of them until cancelled.

    connection: used for nothing else, since its reads block.
    """

    def __init__(self, connection: redis.asyncio.Redis, streams: Streams, *, block_ms: int = settings.BLOCK_MS) -> None:
        self._connection, self._streams, self._block_ms = connection, streams, block_ms
        self._readings: dict[str, set[Reading]] = {}
        self._changed = asyncio.Event()
        self._blocked = False
        self._connection_id: int | None = None
        self._closing = asyncio.Event()

    @property
    def readers(self) -> int:
        return sum(map(len, self._readings.values()))

    def close(self) -> None:
        """Ends all readers, each after what it has."""
        self._closing.set()
        for readings in self._readings.values():
            for reading in readings:
                reading.news.set()

    @property
    def closing(self) -> bool:
        return self._closing.is_set()

    async def follow(self, key: str, after: str, silence_s: float) -> AsyncGenerator[list[RawEvent], None]:
        """Events after `after` in order, as they come; an empty list for every `silence_s` without any.

        Ends only when the hub closes. Raises Unreachable or RedisRefused.
        """
        while not self.closing:
            events = await self._streams.read(key, after)
            if events:
                after = events[-1][0].decode()
                yield events
                continue
            reading = self._join(key, after)
            try:
                while not self.closing:
                    if not reading.events and not reading.behind:
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(silence_s):
                                await reading.news.wait()
                    reading.news.clear()
                    batch = list(reading.events)
                    reading.events.clear()
                    if batch:
                        after = batch[-1][0].decode()
                        yield batch
                    elif reading.behind:
                        break
                    else:
                        yield []
            finally:
                self._leave(reading)

    def _join(self, key: str, after: str) -> Reading:
        reading = Reading(key, after)
        self._readings.setdefault(key, set()).add(reading)
        self._changed.set()
        return reading

    def _leave(self, reading: Reading) -> None:
        readings = self._readings.get(reading.key, set())
        readings.discard(reading)
        if not readings:
            self._readings.pop(reading.key, None)

    async def run(self) -> None:
        """Read for all readers. An outage of Redis is waited out; readers are told by their own reads."""
        waker = asyncio.create_task(self._wake(), name="hub-waker")
        try:
            while True:
                try:
                    await self._turn()
                except (RedisError, OSError) as error:
                    logger.warning("replies cannot be read: %s; trying again", error)
                    self._connection_id = None
                    self._send_all_away()
                    await asyncio.sleep(0.5)
        finally:
            await end_tasks([waker])

    def _send_all_away(self) -> None:
        """Each goes to read for itself, and so finds out how Redis is."""
        for readings in self._readings.values():
            for reading in readings:
                reading.behind = True
                reading.news.set()

    async def _turn(self) -> None:
        if not self._readings:
            self._changed.clear()
            await self._changed.wait()
        if self._connection_id is None:
            self._connection_id = int(await self._connection.client_id())
        self._changed.clear()
        places = {
            key: min((reading.after for reading in readings if not reading.behind), key=entry_order, default=None)
            for key, readings in self._readings.items()
        }
        asked: dict[Any, Any] = {key: place for key, place in places.items() if place is not None}
        if not asked:
            await asyncio.sleep(WAKE_S)
            return
        self._blocked = True
        try:
            answer: Any = await self._connection.xread(asked, count=READ_EVENTS, block=self._block_ms)
        finally:
            self._blocked = False
        for raw_key, events in answer or ():
            for reading in self._readings.get(raw_key.decode(), ()):
                if not reading.behind:
                    reading.push(events)
        await asyncio.sleep(min(len(asked) * PAUSE_PER_KEY_S, LONGEST_PAUSE_S))

    async def _wake(self) -> None:
        """A read that blocks does not know of readers who have come since, so it is cut short."""
        while True:
            await self._changed.wait()
            if self._blocked and self._connection_id is not None:
                try:
                    await self._streams.unblock(self._connection_id)
                except ResponseError as error:
                    logger.warning(
                        "new readers wait up to %d ms, as CLIENT UNBLOCK is refused: %s", self._block_ms, error
                    )
                    return
                except (RedisError, OSError):
                    # The reading connection will notice the same.
                    await asyncio.sleep(self._block_ms / 1000)
            await asyncio.sleep(WAKE_S)


def entry_order(entry_id: str) -> tuple[int, int]:
    """Stream ids in the order of their entries."""
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)
