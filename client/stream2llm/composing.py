"""What both clients share: composing entries, and putting an answer together from events. No I/O."""

from __future__ import annotations

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
    open_digest,
    parse_entry,
)
from stream2llm.errors import ErrorCode, StreamError, stream_error
from stream2llm.events import Accepted, Done, ErrorEvent, Event, Token

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
        raise stream_error(error.code, error.message, field=error.field) from None
    except (UnicodeEncodeError, TypeError, ValueError) as error:
        raise stream_error(ErrorCode.MALFORMED, f"cannot be sent: {error}") from None
    return fields


def open_fields(
    stream: str,
    messages: Sequence[Mapping[str, Any]] | None,
    prompt: str | None,
    params: Mapping[str, Any] | None,
    options: StreamOptions | Mapping[str, Any] | None,
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
            raise stream_error(ErrorCode.INVALID_OPTIONS, str(error), field="options") from None
    plain = None if messages is None else [dict(message) for message in messages]
    try:
        digest = open_digest(plain, prompt, dict(params or {}), chosen)
    except (TypeError, ValueError) as error:
        raise stream_error(ErrorCode.MALFORMED, f"cannot be sent as JSON: {error}") from None
    return _checked(Open(stream, plain, prompt, dict(params or {}), chosen, digest))


def append_fields(stream: str, text: str | None, tokens: Sequence[int] | None, chunk: str | None) -> Fields:
    """Fields of an append; without a chunk id it gets one, so that sending it twice changes nothing."""
    return _checked(Append(stream, text, None if tokens is None else tuple(tokens), chunk or new_id()))


def update_fields(stream: str, context: ContextLike, version: int | None) -> Fields:
    """Fields of an update. Items are ContextItem, `{"id", "text"}` or `(id, text)`."""
    items = []
    for item in context:
        if isinstance(item, ContextItem):
            items.append(item)
        elif isinstance(item, Mapping):
            items.append(ContextItem(item["id"], item.get("text")))
        else:
            items.append(ContextItem(*item))
    return _checked(Update(stream, tuple(items), version))


def finish_fields(stream: str, text: str | None, tokens: Sequence[int] | None, expect: int | None) -> Fields:
    chunk = new_id() if text is not None or tokens is not None else None
    return _checked(Finish(stream, text, None if tokens is None else tuple(tokens), chunk, expect))


def cancel_fields(stream: str) -> Fields:
    return _checked(Cancel(stream))


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer. warnings: entries that were left out; timings as in docs/wire-protocol.md."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    usage: Mapping[str, int]
    timings: Mapping[str, int | float | None]
    warnings: tuple[StreamError, ...] = ()


@dataclass(slots=True)
class AnswerBuilder:
    """Takes events in order; `answer` is there after the terminal one."""

    answer: Answer | None = None
    accepted: bool = False
    _texts: list[str] = field(default_factory=list)
    _token_ids: list[int] = field(default_factory=list)
    _warnings: list[StreamError] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Raises the stream's error if that is what the event is."""
        if isinstance(event, Accepted):
            self.accepted = True
        elif isinstance(event, Token):
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
            error = stream_error(
                event.code, event.message, field=event.field, terminal=event.terminal, ingress_id=event.ingress_id
            )
            if event.terminal:
                raise error
            self._warnings.append(error)


def nobody_answers(pool: str, tenant: str, stream: str, seconds: float, accepted: bool) -> str:
    """The message for a wait that was in vain."""
    if accepted:
        return f"stream {stream}: no event for {seconds:g} s"
    return (
        f"stream {stream}: nothing came back in {seconds:g} s; "
        f"is a router running for pool {pool}, and does it serve tenant {tenant}?"
    )
