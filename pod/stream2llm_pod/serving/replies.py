"""Writes reply events, a batch per stream and event loop turn, fenced by the stream's attempt."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

import redis.asyncio
from redis.exceptions import RedisError, ResponseError

from stream2llm import logs
from stream2llm.errors import ErrorCode
from stream2llm.events import ErrorEvent, encode
from stream2llm.keys import PoolKeys
from stream2llm.retrying import passes
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
    """The reply of one attempt of one stream. `dropped` is called once it turns out not to be this writer's any more.

    attempt, incarnation and open_id (the ingress id of the open) together are what fences a writer; prompt_seq is the
    number of the last entry that the prompt is made of, known before the first token; written_tokens and
    written_events are how many tokens and events Redis has acknowledged.
    """

    tenant: str
    stream: str
    attempt: int
    incarnation: str
    open_id: str
    live_ms: int
    dropped: Callable[[], None]
    prompt_seq: int = 0
    written_tokens: int = 0
    written_events: int = 0
    events: deque[ReplyEvent] = field(default_factory=deque)
    loss: str | None = None
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def member(self) -> str:
        return f"{self.tenant}:{self.stream}"


class ReplyWriter:
    """One task that writes what all replies have to say.

    While Redis cannot be reached the events wait; writing them again is safe, as the script skips what is there.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        keys: PoolKeys,
        *,
        pod: str,
        retain_ms: int,
        max_events: int,
        was_there: Callable[[], bool] = lambda: True,
    ) -> None:
        """`was_there`: whether this pod has been up all the time in which an ended stream's route would be kept."""
        self._client = client
        self._keys = keys
        self._pod = pod
        self._retain_ms = retain_ms
        self._max_events = max_events
        self._was_there = was_there
        self._script = scripts.load("reply")
        self._lose_script = scripts.load("lose")
        self._waiting: dict[Reply, None] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def send(self, reply: Reply, event: ReplyEvent) -> None:
        """Queue one event; nothing after a terminal one is written."""
        if reply.closed.is_set() or reply.loss is not None:
            return
        reply.events.append(event)
        self._waiting[reply] = None
        self._idle.clear()
        self._wake.set()

    def lose(self, reply: Reply, message: str) -> None:
        """Tell the reader, if nobody else has the stream, that Redis has lost it or part of it; nothing follows."""
        if reply.closed.is_set() or reply.loss is not None:
            return
        reply.events.clear()
        reply.loss = message
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
        batch = [(reply, _cut(reply.events)) for reply in self._waiting]
        pipeline = self._client.pipeline(transaction=False)
        for reply, events in batch:
            keys = (
                self._keys.route(reply.tenant, reply.stream),
                self._keys.reply(reply.tenant, reply.stream),
                self._keys.entries(reply.tenant, reply.stream),
                self._keys.usage(reply.tenant),
                self._keys.assigned(self._pod, reply.incarnation),
            )
            fence: tuple[str | int, ...] = (reply.attempt, reply.incarnation, reply.open_id, self._retain_ms)
            if reply.loss is not None:
                lost = encode(ErrorEvent(ErrorCode.LOST, reply.loss, None, True, None))["data"]
                pipeline.evalsha(self._lose_script.sha, len(keys), *keys, *fence, lost, reply.member)
                continue
            arguments: list[str | int] = [*fence, reply.live_ms, self._max_events, reply.member, reply.prompt_seq]
            for event in events:
                arguments += [event.event, event.data, int(event.terminal), event.first_token, event.tokens]
            pipeline.evalsha(self._script.sha, len(keys), *keys, *arguments, reply.written_events)
        results = await pipeline.execute(raise_on_error=False)
        for (reply, events), result in zip(batch, results, strict=True):
            if isinstance(result, ResponseError) and "NOSCRIPT" in _words(result):
                await self._client.script_load(self._script.source)
                await self._client.script_load(self._lose_script.source)
            elif isinstance(result, ResponseError) and not passes(result):
                self._drop(reply, result)
            elif isinstance(result, Exception):
                raise result
            else:
                self._wrote(reply, events)

    def _wrote(self, reply: Reply, events: list[ReplyEvent]) -> None:
        if reply.loss is not None:
            if not events:
                self._close(reply)
            # Else the loss was found while these were on the way, and is still to be told.
            return
        reply.written_tokens = max([reply.written_tokens, *(event.first_token + event.tokens for event in events)])
        reply.written_events += len(events)
        for _ in events:
            reply.events.popleft()
        if any(event.terminal for event in events):
            reply.events.clear()
            reply.closed.set()
        if not reply.events:
            del self._waiting[reply]

    def _drop(self, reply: Reply, error: ResponseError) -> None:
        """What is left of this reply cannot be written: the stream is another's now, has ended, or is not there."""
        words = _words(error)
        if reply.loss is None and ("GAP" in words or ("GONE" in words and self._was_there())):
            self.lose(reply, "Redis has lost part of the stream")
            reply.dropped()
            return
        own_end = "ENDED" in words and any(event.terminal for event in reply.events)
        self._close(reply)
        if not own_end:
            if not {"FENCED", "ENDED", "GONE"} & set(words):
                logger.error(
                    *("reply of %s/%s refused: %s", reply.tenant, reply.stream, error),
                    extra=logs.about(reply.tenant, reply.stream),
                )
            reply.dropped()

    def _close(self, reply: Reply) -> None:
        reply.events.clear()
        reply.closed.set()
        self._waiting.pop(reply, None)


def _cut(events: deque[ReplyEvent]) -> list[ReplyEvent]:
    """The next events to write. A terminal event goes with the one before it: whoever adopted the stream in between
    would find the last token and not that it was the last."""
    batch = list(islice(events, BATCH_EVENTS + 1))
    if len(batch) > BATCH_EVENTS and not batch[-1].terminal:
        batch.pop()
    return batch


def _words(error: ResponseError) -> list[str]:
    # redis-py strips some error prefixes and keeps others, depending on its version.
    return [type(error).__name__.replace("NoScriptError", "NOSCRIPT"), *str(error).replace(":", " ").split()]
