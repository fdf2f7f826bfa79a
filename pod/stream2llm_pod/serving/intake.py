"""Takes entries from the pod's own log and hands them to their sessions, each once and in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import redis.asyncio
from redis.exceptions import RedisError, ResponseError

from stream2llm import logs
from stream2llm.entries import DEFAULT_RULES, Entry, EntryError, EntryRules, Open, parse_entry
from stream2llm.errors import ErrorCode
from stream2llm.keys import PoolKeys
from stream2llm.tenant_limits import checked_weight
from stream2llm_pod.serving.carrying import NOTHING, Carried, IncompleteReply, read_reply
from stream2llm_pod.serving.clocks import RedisClock

logger = logging.getLogger(__name__)

BATCH_ENTRIES = 100
BATCH_BYTES = 4 << 20
"""A read that brought more makes the next one ask for fewer entries: XREAD can be bounded by number only."""
ADOPT_BATCH = 16
"""Streams whose entries are read in one round trip."""
BLOCK_MS = 5_000
MAX_PENDING_BYTES = 64 << 20
"""Text that sessions have been given and not yet worked off; with more than this, the rest stays in Redis."""
PAUSE_S = 0.02
RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)

Fields = Mapping[bytes, bytes]
StreamKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Adoption:
    """What a stream brings along when this pod gets it.

    attempt, incarnation and open_id fence its writer; opened_ms is the Redis time of its open. Of a stream that has
    sent tokens, `carried` is what was sent and `prompt_seq` the number of the last entry that the prompt was made of.
    `weight` is its tenant's.
    """

    attempt: int
    incarnation: str
    open_id: str
    opened_ms: int
    carried: Carried = NOTHING
    prompt_seq: int | None = None
    weight: float = 1.0


class SessionLike(Protocol):
    """What intake needs of a session."""

    applied_seq: int

    @property
    def attempt(self) -> int: ...
    @property
    def open_id(self) -> str: ...
    @property
    def over(self) -> bool: ...
    @property
    def pending_bytes(self) -> int: ...
    def deliver(self, entry: Entry, seq: int, arrived_ms: int, ingress_id: str) -> None: ...
    def skip(self, seq: int) -> None: ...
    def refuse(self, code: ErrorCode, message: str, field: str | None, ingress_id: str | None) -> None: ...
    def drop(self) -> None: ...
    def lose(self, message: str) -> None: ...


OpenSession = Callable[[str, Open, Adoption], SessionLike]
"""(tenant, open, adoption) → a new session that is already being served."""


def arrival_ms(ingress_id: str) -> int:
    """The Redis time, in ms, at which an ingress entry was added."""
    return int(ingress_id.split("-", 1)[0])


@dataclass(slots=True)
class Intake:
    """Reads the log with blocking reads on a connection of its own, from its head, and empties it.

    An outage of Redis stops nothing here: it reads on from where it was as soon as Redis is back. What is read twice
    changes nothing, as sessions know the sequence number that they have applied.
    """

    client: redis.asyncio.Redis
    keys: PoolKeys
    pod: str
    incarnation: str
    clock: RedisClock
    open_session: OpenSession
    lag: Callable[[float], None] = lambda seconds: None
    rules: EntryRules = DEFAULT_RULES
    sessions: dict[StreamKey, SessionLike] = field(default_factory=dict)
    _count: int = BATCH_ENTRIES

    async def run(self) -> None:
        """Take entries in until cancelled."""
        failures = 0
        while True:
            try:
                while self._pending_bytes() > MAX_PENDING_BYTES:
                    await asyncio.sleep(PAUSE_S)
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
        answer = await self.client.xread({log: "0"}, count=self._count, block=block_ms)
        if not answer:
            return 0
        batch = cast(list[tuple[bytes, dict[bytes, bytes] | None]], _entries_of(answer))
        size_bytes = sum(len(value) for _, fields in batch for value in (fields or {}).values())
        self._count = max(self._count // 4, 1) if size_bytes > BATCH_BYTES else min(self._count * 2, BATCH_ENTRIES)
        await self._apply_all([fields for _, fields in batch if fields])
        await self.client.xdel(log, *(entry_id for entry_id, _ in batch))
        return len(batch)

    async def catch_up(self, key: StreamKey) -> None:
        """Apply what the stream's entries hold beyond what its session knows."""
        session = self.sessions.get(key)
        if session is not None and not session.over:
            await self._read_entries(key, session)

    def _pending_bytes(self) -> int:
        return sum(session.pending_bytes for session in self.sessions.values())

    async def _apply_all(self, batch: list[Fields]) -> None:
        """In order, but for the reads: all streams to adopt are read together, and adopted where they stand."""
        found: dict[int, Any] = {}
        adopts = [i for i, fields in enumerate(batch) if fields.get(b"op") == b"adopt"]
        for start in range(0, len(adopts), ADOPT_BATCH):
            some = adopts[start : start + ADOPT_BATCH]
            found |= zip(some, await self._read_streams([batch[i] for i in some]), strict=True)
        for i, fields in enumerate(batch):
            try:
                if i in found:
                    self._adopt(_key(fields), int(fields[b"attempt"]), found[i])
                else:
                    await self._apply(fields)
            except (KeyError, ValueError) as error:
                logger.error("the pod log holds an entry that no router writes: %r", error)

    async def _apply(self, fields: Fields) -> None:
        key, attempt, seq = _key(fields), int(fields[b"attempt"]), int(fields[b"seq"])
        session = self.sessions.get(key)
        if session is None or session.over or session.attempt != attempt:
            return
        if seq > session.applied_seq + 1:
            await self._read_entries(key, session)
        _deliver(session, fields, seq)
        self._note_lag(fields)

    async def _read_streams(self, adopts: list[Fields]) -> list[Any]:
        """For each: its route, its entries, its reply if it has been elsewhere before, and its tenant's weight. None
        for a foreign type."""
        pipeline = self.client.pipeline(transaction=False)
        for fields in adopts:
            key = _key(fields)
            pipeline.hmget(
                self.keys.route(*key), "state", "attempt", "incarnation", "open_id", "next_token", "prompt_seq"
            )
            pipeline.xrange(self.keys.entries(*key))
            # Nothing of ours is in the reply at a first attempt.
            pipeline.xrange(self.keys.reply(*key), count=1 if fields[b"attempt"] == b"1" else None)
            pipeline.hget(self.keys.limits(key[0]), "weight")
        answers = await pipeline.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, ResponseError):
                raise answer
        return [
            None if any(isinstance(answer, ResponseError) for answer in answers[i : i + 3]) else answers[i : i + 4]
            for i in range(0, len(answers), 4)
        ]

    def _adopt(self, key: StreamKey, attempt: int, found: Any) -> None:
        if found is None:
            logger.error("a key of %s/%s has a foreign type; the stream is not taken", *key, extra=logs.about(*key))
            return
        route, entries, reply, weight = found
        state, current, incarnation, open_id, next_token, prompt_seq = (
            None if value is None else value.decode() for value in route
        )
        if state in (None, "ended") or current != str(attempt) or incarnation != self.incarnation or not open_id:
            # The stream ended, or moved on, before this pod got to it: the router knows.
            logger.info("nothing left to adopt of %s/%s", *key, extra=logs.about(*key))
            return
        held = self.sessions.get(key)
        if held is not None and not held.over:
            if held.attempt >= attempt and held.open_id == open_id:
                return
            held.drop()
        carried, problem = NOTHING, ""
        try:
            carried = read_reply(reply or (), int(next_token or 0))
        except IncompleteReply as error:
            problem = f"the reply is not whole: {error}"
        opening = self._opening(key, entries)
        if opening is None:
            problem = "its entries are gone"
            opening = Open(key[1])
        adoption = Adoption(
            attempt,
            self.incarnation,
            open_id,
            arrival_ms(open_id),
            carried,
            int(prompt_seq) if carried.token_ids and prompt_seq is not None else None,
            _weight(weight),
        )
        session = self.open_session(key[0], opening, adoption)
        self.sessions[key] = session
        if problem:
            session.lose(f"Redis has lost part of the stream: {problem}")
            return
        for _, fields in entries:
            _deliver(session, fields, _seq(fields))
        self._note_lag(entries[-1][1])

    def _opening(self, key: StreamKey, entries: list[tuple[bytes, Fields]]) -> Open | None:
        if not entries or _seq(entries[0][1]) != 1:
            return None
        try:
            opening = parse_entry(entries[0][1], self.rules)
        except EntryError as error:
            logger.error("the open of %s/%s cannot be read: %s", *key, error, extra=logs.about(*key))
            return None
        return opening if isinstance(opening, Open) else None

    async def _read_entries(self, key: StreamKey, session: SessionLike) -> None:
        """Apply the stream's own entries from the next one that is missing."""
        answer = await self.client.xrange(self.keys.entries(*key))
        for _, fields in cast(Iterable[tuple[bytes, Fields]], answer or []):
            seq = _seq(fields)
            if seq == session.applied_seq + 1:
                _deliver(session, fields, seq)

    def _note_lag(self, fields: Fields) -> None:
        self.lag(max(self.clock.now_ms() - arrival_ms(fields[b"ingress_id"].decode()), 0) / 1000)


def _deliver(session: SessionLike, fields: Fields, seq: int) -> None:
    if seq <= session.applied_seq:
        return
    ingress_id = fields[b"ingress_id"].decode()
    try:
        entry = parse_entry(fields)
    except EntryError as error:
        # The router checks the same before it forwards, so this is a router of another version.
        session.skip(seq)
        session.refuse(error.code, error.message, error.field, ingress_id)
        return
    session.deliver(entry, seq, arrival_ms(ingress_id), ingress_id)


def _key(fields: Fields) -> StreamKey:
    return fields[b"tenant"].decode(), fields[b"stream"].decode()


def _seq(fields: Fields) -> int:
    return int(fields[b"seq"])


def _weight(raw: Any) -> float:
    """1 where the tenant has none, or one that cannot be read: the router complains of that."""
    try:
        return checked_weight(raw)
    except (TypeError, ValueError):
        return 1.0


def _entries_of(answer: Any) -> Any:
    """The entries of an XREAD of one stream, in either protocol's form."""
    if isinstance(answer, dict):
        (batches,) = answer.values()
        return batches[0] if batches and isinstance(batches[0], list) else batches
    return answer[0][1]
