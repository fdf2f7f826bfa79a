"""Writes reply events, a batch per stream and event loop turn, fenced by the stream's attempt."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import redis.asyncio
from redis.exceptions import RedisError, ResponseError

from stream2llm.keys import PoolKeys
from stream2llm_pod.serving import scripts

logger = logging.getLogger(__name__)

# Bounds one script call, so that one long answer does not stop the server for others.
BATCH_EVENTS = 200
RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class ReplyEvent:
    """One encoded event. A token event says which output tokens it carries, so that a repeat is told from news."""

    event: str
    data: str
    terminal: bool = False
    first_token: int = -1
    tokens: int = 0


@dataclass(slots=True, eq=False)
class Reply:
    """The reply of one attempt of one stream. `lost` is called once if the attempt turns out to be fenced."""

    tenant: str
    stream: str
    attempt: int
    live_ms: int
    lost: Callable[[], None]
    events: deque[ReplyEvent] = field(default_factory=deque)
    closed: asyncio.Event = field(default_factory=asyncio.Event)


class ReplyWriter:
    """One task that writes what all replies have to say.

    While Redis cannot be reached the events wait; writing them again is safe, as the script skips what is there.
    """

    def __init__(self, client: redis.asyncio.Redis, keys: PoolKeys, *, retain_ms: int, max_events: int) -> None:
        self._client = client
        self._keys = keys
        self._retain_ms = retain_ms
        self._max_events = max_events
        self._script = scripts.load("reply")
        self._waiting: dict[Reply, None] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def send(self, reply: Reply, event: ReplyEvent) -> None:
        """Queue one event; nothing after a terminal one is written."""
        if reply.closed.is_set():
            return
        reply.events.append(event)
        self._waiting[reply] = None
        self._idle.clear()
        self._wake.set()

    async def drained(self) -> None:
        """Wait until everything queued is written."""
        await self._idle.wait()

    async def run(self) -> None:
        """Write until cancelled."""
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                try:
                    await self._write_once()
                    failures = 0
                except (RedisError, OSError) as error:
                    delay_s = RETRY_S[min(failures, len(RETRY_S) - 1)]
                    failures += 1
                    logger.warning("cannot write replies (%s); next try in %.2f s", error, delay_s)
                    await asyncio.sleep(delay_s)
            self._idle.set()

    async def _write_once(self) -> None:
        batch = [(reply, list(reply.events)[:BATCH_EVENTS]) for reply in self._waiting]
        pipeline = self._client.pipeline(transaction=False)
        for reply, events in batch:
            arguments: list[str | int] = [reply.attempt, self._retain_ms, reply.live_ms, self._max_events]
            for event in events:
                arguments += [event.event, event.data, int(event.terminal), event.first_token, event.tokens]
            pipeline.evalsha(
                self._script.sha,
                3,
                self._keys.route(reply.tenant, reply.stream),
                self._keys.reply(reply.tenant, reply.stream),
                self._keys.entries(reply.tenant, reply.stream),
                *arguments,
            )
        results = await pipeline.execute(raise_on_error=False)
        for (reply, events), result in zip(batch, results, strict=True):
            if isinstance(result, ResponseError) and "NOSCRIPT" in _words(result):
                await self._client.script_load(self._script.source)
            elif isinstance(result, ResponseError) and not _is_transient(result):
                self._drop(reply, result)
            elif isinstance(result, Exception):
                raise result
            else:
                self._wrote(reply, events)

    def _wrote(self, reply: Reply, events: list[ReplyEvent]) -> None:
        for _ in events:
            reply.events.popleft()
        if any(event.terminal for event in events):
            reply.events.clear()
            reply.closed.set()
        if not reply.events:
            del self._waiting[reply]

    def _drop(self, reply: Reply, error: ResponseError) -> None:
        """The stream is another's now, or has ended: what is left of this reply is nobody's business."""
        own_end = "ENDED" in _words(error) and any(event.terminal for event in reply.events)
        reply.events.clear()
        reply.closed.set()
        del self._waiting[reply]
        if not own_end:
            if "FENCED" not in _words(error) and "ENDED" not in _words(error):
                logger.error("reply of %s/%s refused: %s", reply.tenant, reply.stream, error)
            reply.lost()


def _words(error: ResponseError) -> list[str]:
    # redis-py strips some error prefixes and keeps others, depending on its version.
    return [type(error).__name__.replace("NoScriptError", "NOSCRIPT"), *str(error).replace(":", " ").split()]


def _is_transient(error: ResponseError) -> bool:
    """Errors that pass by themselves: loading, read-only after a fail-over, out of memory, busy with a script."""
    return bool({"LOADING", "READONLY", "OOM", "BUSY", "TRYAGAIN", "MASTERDOWN"} & set(_words(error))) or type(
        error
    ).__name__ in {"ReadOnlyError", "OutOfMemoryError", "BusyLoadingError", "TryAgainError", "MasterDownError"}
