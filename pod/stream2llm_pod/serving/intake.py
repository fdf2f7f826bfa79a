"""Takes entries from the pod's own log and hands them to their sessions, each once and in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import redis.asyncio
from redis.exceptions import RedisError

from stream2llm.entries import Entry, EntryError, Open, parse_entry
from stream2llm.errors import ErrorCode
from stream2llm.keys import PoolKeys
from stream2llm_pod.serving.clocks import RedisClock

logger = logging.getLogger(__name__)

BATCH_ENTRIES = 100
BLOCK_MS = 5_000
RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)

Fields = Mapping[bytes, bytes]
StreamKey = tuple[str, str]


class SessionLike(Protocol):
    """What intake needs of a session."""

    attempt: int
    applied_seq: int

    @property
    def over(self) -> bool: ...
    def deliver(self, entry: Entry, seq: int, arrived_ms: int, ingress_id: str) -> None: ...
    def skip(self, seq: int) -> None: ...
    def refuse(self, code: ErrorCode, message: str, field: str | None, ingress_id: str | None) -> None: ...
    def drop(self) -> None: ...


OpenSession = Callable[[str, Open, int, int], SessionLike]
"""(tenant, open, attempt, arrival of the open in Redis' ms) → a new session that is already being served."""


def arrival_ms(ingress_id: str) -> int:
    """The Redis time, in ms, at which an ingress entry was added."""
    return int(ingress_id.split("-", 1)[0])


@dataclass(slots=True)
class Intake:
    """Reads the log with blocking reads on a connection of its own.

    An outage of Redis stops nothing here: it reads on from where it was as soon as Redis is back.
    """

    client: redis.asyncio.Redis
    keys: PoolKeys
    pod: str
    incarnation: str
    clock: RedisClock
    open_session: OpenSession
    lag: Callable[[float], None] = lambda seconds: None
    sessions: dict[StreamKey, SessionLike] = field(default_factory=dict)
    _position: str = "0"

    async def run(self) -> None:
        """Take entries in until cancelled."""
        failures = 0
        while True:
            try:
                await self.take()
                failures = 0
            except (RedisError, OSError) as error:
                delay_s = RETRY_S[min(failures, len(RETRY_S) - 1)]
                failures += 1
                logger.warning("cannot read the pod log (%s); next try in %.2f s", error, delay_s)
                await asyncio.sleep(delay_s)

    async def take(self, block_ms: int = BLOCK_MS) -> int:
        """Wait for entries, apply one batch and trim it from the log. Returns the number of entries."""
        log = self.keys.log(self.pod, self.incarnation)
        answer = await self.client.xread({log: self._position}, count=BATCH_ENTRIES, block=block_ms)
        if not answer:
            return 0
        batch = cast(list[tuple[bytes, dict[bytes, bytes] | None]], _entries_of(answer))
        for entry_id, fields in batch:
            if fields:
                await self._apply(fields)
            # An entry is behind us once applied, even if the outage comes before it is trimmed.
            self._position = entry_id.decode()
        await self.client.xdel(log, *(entry_id for entry_id, _ in batch))
        return len(batch)

    async def _apply(self, fields: Fields) -> None:
        try:
            tenant, stream = fields[b"tenant"].decode(), fields[b"stream"].decode()
            attempt = int(fields[b"attempt"])
            if fields[b"op"] == b"adopt":
                await self._adopt((tenant, stream), attempt, int(fields[b"upto"]))
                return
            seq = int(fields[b"seq"])
        except (KeyError, ValueError) as error:
            logger.error("the pod log holds an entry that no router writes: %r", error)
            return
        session = self.sessions.get((tenant, stream))
        if session is None or session.over or session.attempt != attempt:
            return
        if seq > session.applied_seq + 1:
            await self._read_entries((tenant, stream), session, seq - 1)
        _deliver(session, fields, seq)
        self._note_lag(fields)

    async def _adopt(self, key: StreamKey, attempt: int, upto: int) -> None:
        held = self.sessions.get(key)
        if held is not None and not held.over:
            if held.attempt >= attempt:
                return
            held.drop()
        first = await self._entries(key, 1)
        if not first or _seq(first[0]) != 1:
            # The stream ended, or moved on, before this pod got to it: the router knows.
            logger.info("nothing left to adopt of %s/%s", *key)
            return
        ingress_id = first[0][b"ingress_id"].decode()
        try:
            opening = parse_entry(first[0])
        except EntryError as error:
            logger.error("the open of %s/%s cannot be read: %s", *key, error)
            return
        if not isinstance(opening, Open):
            logger.error("the entries of %s/%s do not begin with an open", *key)
            return
        session = self.open_session(key[0], opening, attempt, arrival_ms(ingress_id))
        self.sessions[key] = session
        self._note_lag(first[0])
        if upto > 1:
            await self._read_entries(key, session, upto)

    async def _read_entries(self, key: StreamKey, session: SessionLike, upto: int) -> None:
        """Apply the stream's own entries from the next one that is missing up to `upto`."""
        for fields in await self._entries(key, None):
            seq = _seq(fields)
            if session.applied_seq < seq <= upto:
                _deliver(session, fields, seq)

    async def _entries(self, key: StreamKey, count: int | None) -> list[Fields]:
        answer = await self.client.xrange(self.keys.entries(*key), count=count)
        entries = cast(list[tuple[bytes, Fields]], answer or [])
        return [fields for _, fields in entries]

    def _note_lag(self, fields: Fields) -> None:
        self.lag(max(self.clock.now_ms() - arrival_ms(fields[b"ingress_id"].decode()), 0) / 1000)


def _deliver(session: SessionLike, fields: Fields, seq: int) -> None:
    ingress_id = fields[b"ingress_id"].decode()
    try:
        entry = parse_entry(fields)
    except EntryError as error:
        # The router checks the same before it forwards, so this is a router of another version.
        session.skip(seq)
        session.refuse(error.code, error.message, error.field, ingress_id)
        return
    session.deliver(entry, seq, arrival_ms(ingress_id), ingress_id)


def _seq(fields: Fields) -> int:
    return int(fields[b"seq"])


def _entries_of(answer: Any) -> Any:
    """The entries of an XREAD of one stream, in either protocol's form."""
    if isinstance(answer, dict):
        (batches,) = answer.values()
        return batches[0] if batches and isinstance(batches[0], list) else batches
    return answer[0][1]
