"""The client for programs that block."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

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
    nobody_answers,
    open_fields,
    update_fields,
)
from stream2llm.connecting import DEFAULT_URL, connect
from stream2llm.entries import StreamOptions
from stream2llm.errors import NoAnswer, Unreachable
from stream2llm.events import Event, is_terminal, parse_event
from stream2llm.keys import DEFAULT_POOL, DEFAULT_TENANT, PoolKeys, check_tenant

SEND_TRIES = 5


class Client:
    """Opens streams in one pool for one tenant. Safe to share between threads.

    Every entry can be sent twice without harm (chunks carry ids), so a lost connection is retried with back-off.
    Raises Unreachable when Redis stays away.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        pool: str = DEFAULT_POOL,
        tenant: str = DEFAULT_TENANT,
        password_file: str | None = None,
        connection: redis.Redis | None = None,
    ) -> None:
        self.keys = PoolKeys(pool)
        self.tenant = check_tenant(tenant)
        # Our own retries only: the Redis client's would be invisible to the caller and could take minutes.
        self._redis = connection if connection is not None else connect(url, password_file, retries=0)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._redis.close()

    def open(
        self,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        prompt: str | None = None,
        params: Mapping[str, Any] | None = None,
        options: StreamOptions | Mapping[str, Any] | None = None,
        stream: str | None = None,
    ) -> Stream:
        """Open a stream. Either `messages` or `prompt`, with the marker `{context}` exactly once.

        params: sampling parameters by their OpenAI names. stream: an id of your own, else a new one.
        Raises InvalidRequest for what the router would refuse.
        """
        name = stream or new_id()
        self.send(open_fields(name, messages, prompt, params, options))
        return Stream(self, name)

    def stream(self, name: str) -> Stream:
        """A handle on a stream that was opened elsewhere."""
        return Stream(self, name)

    def send(self, fields: Fields) -> str:
        """Write one ingress entry; returns its id. Retried, so it should be one that may arrive twice."""
        delay_s = 0.1
        for attempt in range(1, SEND_TRIES + 1):
            try:
                entry_id: Any = self._redis.xadd(self.keys.ingress(self.tenant), fields)  # type: ignore[arg-type]
                return str(entry_id.decode())
            except (RedisConnectionError, RedisTimeoutError) as error:
                if attempt == SEND_TRIES:
                    raise Unreachable(f"Redis cannot be reached: {error}") from error
                time.sleep(delay_s)
                delay_s *= 2
        raise AssertionError("not reached")

    def read(self, stream: str, after: str, block_ms: int) -> list[tuple[str, Event | None]]:
        """Reply events after the id `after`, waiting at most `block_ms` for the first."""
        try:
            answer: Any = self._redis.xread({self.keys.reply(self.tenant, stream): after}, count=500, block=block_ms)
        except (RedisConnectionError, RedisTimeoutError):
            time.sleep(min(block_ms / 1000, 0.5))
            return []
        return [(entry_id.decode(), parse_event(fields)) for _, entries in answer or () for entry_id, fields in entries]


class Stream:
    """One stream of a client."""

    def __init__(self, client: Client, name: str) -> None:
        self._client, self.name = client, name

    def append(self, text: str | None = None, *, tokens: Sequence[int] | None = None, chunk: str | None = None) -> None:
        """Add one chunk at the end. A chunk id of your own makes retries across processes safe."""
        self._client.send(append_fields(self.name, text, tokens, chunk))

    def update(self, context: ContextLike, *, version: int | None = None) -> None:
        """Replace the whole context; an item whose text was sent before may come by its id alone."""
        self._client.send(update_fields(self.name, context, version))

    def finish(
        self, text: str | None = None, *, tokens: Sequence[int] | None = None, expect: int | None = None
    ) -> None:
        """The context is complete, perhaps with a last chunk. expect: wait until that many chunks are there."""
        self._client.send(finish_fields(self.name, text, tokens, expect))

    def cancel(self) -> None:
        self._client.send(cancel_fields(self.name))

    def events(self, *, after: str = "0", timeout_s: float | None = None) -> Iterator[Event]:
        """Reply events up to the terminal one. timeout_s: longest silence; NoAnswer after it."""
        for _, event in self.events_with_ids(after=after, timeout_s=timeout_s):
            yield event

    def events_with_ids(self, *, after: str = "0", timeout_s: float | None = None) -> Iterator[tuple[str, Event]]:
        """As `events`, each with the id to resume after."""
        heard_s, accepted = time.monotonic(), after != "0"
        while True:
            for entry_id, event in self._client.read(self.name, after, settings.BLOCK_MS):
                heard_s, accepted, after = time.monotonic(), True, entry_id
                if event is not None:
                    yield entry_id, event
                    if is_terminal(event):
                        return
            if timeout_s is not None and time.monotonic() - heard_s > timeout_s:
                keys = self._client.keys
                raise NoAnswer(nobody_answers(keys.pool, self._client.tenant, self.name, timeout_s, accepted))

    def answer(self, *, timeout_s: float | None = None) -> Answer:
        """Wait for the whole answer. Raises the stream's error if it ends with one."""
        builder = AnswerBuilder()
        for event in self.events(timeout_s=timeout_s):
            builder.take(event)
        assert builder.answer is not None
        return builder.answer
