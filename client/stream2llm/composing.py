"""What both clients share: composing entries, and putting an answer together from events. No I/O."""

from __future__ import annotations

import operator
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stream2llm.entries import (
    Append,
    Cancel,
    ContextItem,
    Entry,
    EntryError,
    Finish,
    Open,
    StreamOptions,
    Update,
    encode_bytes,
    parse_entry,
)
from stream2llm.errors import ErrorCode, ReplyGone, StreamError, stream_error
from stream2llm.events import Done, ErrorEvent, Event, Token

Fields = dict[bytes, bytes]
ContextLike = Iterable[ContextItem | Mapping[str, Any] | tuple[str, str]]


def new_id() -> str:
    """An id that nobody else uses, short enough to read."""
    return secrets.token_hex(12)


def _checked(entry: Entry) -> Fields:
    """The entry's fields, after the same checks that the router makes; raises the error it would answer with."""
    try:
        fields = encode_bytes(entry)
        parse_entry(fields)
    except EntryError as error:
        raise stream_error(error.code, error.message, field=error.field, terminal=False) from None
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise _unsendable(error) from None
    return fields


def _unsendable(error: Exception, field: str | None = None) -> StreamError:
    return stream_error(ErrorCode.MALFORMED, f"cannot be sent: {error}", field=field, terminal=False)


def _token_ids(tokens: Iterable[int] | None) -> tuple[int, ...] | None:
    """Token ids as plain integers, also from arrays of other libraries."""
    if tokens is None:
        return None
    try:
        return tuple(token if isinstance(token, bool) else operator.index(token) for token in tokens)
    except TypeError as error:
        raise _unsendable(error, "tokens") from None


def open_fields(
    stream: str,
    messages: Sequence[Mapping[str, Any]] | None,
    prompt: str | None,
    params: Mapping[str, Any] | None,
    options: StreamOptions | Mapping[str, Any] | None,
    traceparent: str = "",
) -> Fields:
    """Fields of an open; raises InvalidRequest with what is wrong."""
    if options is None:
        chosen = StreamOptions()
    elif isinstance(options, StreamOptions):
        chosen = options
    else:
        try:
            chosen = StreamOptions(**options)
        except TypeError as error:
            raise stream_error(ErrorCode.INVALID_OPTIONS, str(error), field="options", terminal=False) from None
    try:
        plain = None if messages is None else [dict(message) for message in messages]
        return _checked(Open(stream, plain, prompt, dict(params or {}), chosen, traceparent=traceparent))
    except (TypeError, ValueError) as error:
        raise _unsendable(error) from None


def append_fields(stream: str, text: str | None, tokens: Iterable[int] | None, chunk: str | None) -> Fields:
    """Fields of an append; without a chunk id it gets one, so that sending it twice changes nothing."""
    return _checked(Append(stream, text, _token_ids(tokens), new_id() if chunk is None else chunk))


def update_fields(stream: str, context: ContextLike, version: int | None) -> Fields:
    """Fields of an update. Items are ContextItem, `{"id", "text"}` or `(id, text)`."""
    return _checked(Update(stream, tuple(_context_item(item) for item in context), version))


def _context_item(item: ContextItem | Mapping[str, Any] | tuple[str, str]) -> ContextItem:
    if isinstance(item, ContextItem):
        return item
    if isinstance(item, Mapping) and "id" in item:
        return ContextItem(item["id"], item.get("text"))
    if isinstance(item, tuple | list) and len(item) == 2:
        return ContextItem(item[0], item[1])
    raise _unsendable(TypeError(f"{ascii(item)[:60]} is no ContextItem, {{'id', 'text'}} or (id, text)"), "context")


def finish_fields(
    stream: str, text: str | None, tokens: Iterable[int] | None, chunk: str | None, expect: int | None
) -> Fields:
    """Fields of a finish; a chunk that comes with it gets an id, as in an append."""
    if chunk is None and (text is not None or tokens is not None):
        chunk = new_id()
    return _checked(Finish(stream, text, _token_ids(tokens), chunk, expect))


def cancel_fields(stream: str) -> Fields:
    return _checked(Cancel(stream))


def as_error(event: ErrorEvent) -> StreamError:
    """The exception for an `error` event."""
    return stream_error(
        event.code, event.message, field=event.field, terminal=event.terminal, ingress_id=event.ingress_id
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer, whose `str` is its text.

    warnings: entries that were left out, from non-terminal `error` events; timings as in docs/wire-protocol.md.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    usage: Mapping[str, int]
    timings: Mapping[str, int | float | None]
    warnings: tuple[StreamError, ...] = ()

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class AnswerBuilder:
    """Takes events in order; `answer` is there after the terminal one."""

    answer: Answer | None = None
    _texts: list[str] = field(default_factory=list)
    _token_ids: list[int] = field(default_factory=list)
    _warnings: list[StreamError] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Raises the stream's error if that is what the event is, ReplyGone if tokens before this one are missing."""
        if isinstance(event, Token):
            if event.index != len(self._token_ids):
                raise ReplyGone(f"token {len(self._token_ids)} of the answer is missing; the next one is {event.index}")
            self._texts.append(event.text)
            self._token_ids.extend(event.token_ids)
        elif isinstance(event, Done):
            self.answer = Answer(
                "".join(self._texts),
                tuple(self._token_ids),
                event.finish_reason,
                event.usage,
                event.timings,
                tuple(self._warnings),
            )
        elif isinstance(event, ErrorEvent):
            if event.terminal:
                raise as_error(event)
            self._warnings.append(as_error(event))

    def complete(self) -> Answer:
        """The answer, after the terminal event."""
        if self.answer is None:
            raise ValueError("the terminal event has not been taken")
        return self.answer
