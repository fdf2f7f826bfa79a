"""The client for programs that block."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import redis
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
from stream2llm.connecting import DEFAULT_URL, RedisTLS, check_answers_bytes, connect
from stream2llm.entries import StreamOptions
from stream2llm.events import Event
from stream2llm.following import BATCH_EVENTS, START, Following
from stream2llm.keys import DEFAULT_POOL, DEFAULT_TENANT, PoolKeys, check_tenant
from stream2llm.overview.reading import Overview, read_overview
from stream2llm.retrying import Retrying


class Client:
    """Opens streams in one pool for one tenant. Safe to share between threads.

    Every entry can be sent twice without harm (chunks carry ids), so a lost connection is retried with back-off.
    All calls raise Unreachable when Redis stays away, and RedisRefused when it answers and refuses.

    tls: certificates for `rediss://`; None for those that the environment names.
    connection: a Redis client of your own instead of `url`; it must answer in bytes, retry nothing by itself, and have
    a `socket_timeout` above settings.BLOCK_MS.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        pool: str = DEFAULT_POOL,
        tenant: str = DEFAULT_TENANT,
        password_file: str | None = None,
        tls: RedisTLS | None = None,
        connection: redis.Redis | None = None,
    ) -> None:
        self.keys = PoolKeys(pool)
        self.tenant = check_tenant(tenant)
        # Our own retries only: the Redis client's would be invisible to the caller and could take minutes.
        if connection is None:
            connection = connect(url, password_file, tls=tls, retries=0, allow_password=True)
        check_answers_bytes(connection)
        self._redis = connection

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Streams that are open stay open."""
        self._redis.close()

    def overview(self) -> Overview:
        """What the pool does at the moment: its pods, and what waits for each tenant. Raises RedisError."""
        return read_overview(self._redis, self.keys)

    def open(
        self,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        prompt: str | None = None,
        params: Mapping[str, Any] | None = None,
        options: StreamOptions | Mapping[str, Any] | None = None,
        stream: str | None = None,
        traceparent: str = "",
    ) -> Stream:
        """Open a stream. Either `messages` or `prompt`, with the marker `{context}` exactly once.

        params: sampling parameters by their OpenAI names. stream: an id of your own, else a new one.
        traceparent: the span that this belongs to, as W3C's Trace Context writes it, where streams are traced.
        Raises InvalidRequest for what the router would refuse.
        """
        name = new_id() if stream is None else stream
        self.send(open_fields(name, messages, prompt, params, options, traceparent))
        return Stream(self, name)

    def stream(self, name: str) -> Stream:
        """A handle on a stream that was opened elsewhere."""
        return Stream(self, name)

    def send(self, fields: Fields, *, tries: int = settings.SEND_TRIES) -> str:
        """Write one ingress entry as it is; returns its id. Tried again, it may arrive twice: it should be harmless."""
        retrying = Retrying(tries)
        while True:
            try:
                entry_id: Any = self._redis.xadd(self.keys.ingress(self.tenant), fields)  # type: ignore[arg-type]
                return str(entry_id.decode())
            except RedisError as error:
                time.sleep(retrying.failed(error))

    def follow(self, place: Following) -> Iterator[tuple[str, Event]]:
        """The events from a place in a reply on, each with the id to resume after."""
        retrying = Retrying(None, outage_s=settings.READ_OUTAGE_S)
        while not place.ended:
            try:
                answer: Any = self._redis.xread({place.key: place.after}, count=BATCH_EVENTS, block=place.block_ms())
                exists = bool(answer or self._redis.exists(place.key))
            except RedisError as error:
                place.check()
                time.sleep(retrying.failed(error))
                continue
            retrying.succeeded()
            yield from place.take(answer, exists=exists)


class Stream:
    """One stream of a client."""

    def __init__(self, client: Client, name: str) -> None:
        self._client, self.name = client, name

    def append(self, text: str | None = None, *, tokens: Iterable[int] | None = None, chunk: str | None = None) -> None:
        """Add one chunk at the end. A chunk id of your own makes retries across processes safe."""
        self._client.send(append_fields(self.name, text, tokens, chunk))

    def update(self, context: ContextLike, *, version: int | None = None) -> None:
        """Replace the whole context; an item whose text was sent before may come by its id alone."""
        self._client.send(update_fields(self.name, context, version))

    def finish(
        self,
        text: str | None = None,
        *,
        tokens: Iterable[int] | None = None,
        chunk: str | None = None,
        expect: int | None = None,
    ) -> None:
        """The context is complete, perhaps with a last chunk. expect: wait until that many chunks are there."""
        self._client.send(finish_fields(self.name, text, tokens, chunk, expect))

    def cancel(self) -> None:
        """End the stream; its reply gets `done` with the reason `cancelled`."""
        self._client.send(cancel_fields(self.name))

    def events(
        self,
        *,
        after: str = START,
        timeout_s: float | None = None,
        accept_timeout_s: float | None = settings.ACCEPT_TIMEOUT_S,
    ) -> Iterator[Event]:
        """Reply events up to the terminal one, non-terminal errors among them.

        timeout_s: longest silence between events; accept_timeout_s: longest wait for the first; None for no limit.
        Raises NoAnswer when it is over, ReplyGone if the reply has expired, ValueError for an id that is none.
        """
        for _, event in self.events_with_ids(after=after, timeout_s=timeout_s, accept_timeout_s=accept_timeout_s):
            yield event

    def events_with_ids(
        self,
        *,
        after: str = START,
        timeout_s: float | None = None,
        accept_timeout_s: float | None = settings.ACCEPT_TIMEOUT_S,
    ) -> Iterator[tuple[str, Event]]:
        """As `events`, each with the id to resume after."""
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

    def answer(
        self, *, timeout_s: float | None = None, accept_timeout_s: float | None = settings.ACCEPT_TIMEOUT_S
    ) -> Answer:
        """Wait for the whole answer. Raises the stream's error if it ends with one; time-outs as in `events`."""
        builder = AnswerBuilder()
        for event in self.events(timeout_s=timeout_s, accept_timeout_s=accept_timeout_s):
            builder.take(event)
        return builder.complete()
