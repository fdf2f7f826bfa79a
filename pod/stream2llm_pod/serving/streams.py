"""What the entries of one stream mean: a state machine without clocks, engines or Redis.

Times are milliseconds of Redis' clock and are passed in. `apply` changes the stream in place and returns a refusal
where the entry is an error that the producer must hear of; everything else is read from the stream's fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from stream2llm.entries import Append, Cancel, Entry, Finish, Open, StreamOptions, Update
from stream2llm.errors import ErrorCode
from stream2llm.settings import MAX_STREAM_BYTES


class Phase(StrEnum):
    """Where a stream stands."""

    OPEN = "open"
    WAITING = "waiting"  # finished, but fewer chunks than `expect` have come
    GENERATING = "generating"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an entry was left out. The stream goes on without it."""

    code: ErrorCode
    message: str
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Timeout:
    """What a stream that ran out of time does: end with an error, or answer with what has arrived."""

    code: ErrorCode
    message: str
    finish: bool


@dataclass(slots=True)
class Stream:
    """All that one stream has received.

    `texts` or `tokens` is the context in order, whichever kind the first chunk was. `vocabulary_tokens` bounds the
    token ids that a chunk may hold.
    """

    options: StreamOptions
    opened_ms: int
    touched_ms: int
    vocabulary_tokens: int
    phase: Phase = Phase.OPEN
    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    known: dict[str, str] = field(default_factory=dict)
    chunk_ids: set[str] = field(default_factory=set)
    distinct_chunks: int = 0
    is_text: bool | None = None
    version: int | None = None
    expect: int | None = None
    finished_ms: int | None = None
    cancelled: bool = False

    def context(self) -> str:
        """The context of a stream of text, as it goes in the marker's place."""
        return self.options.separator.join(self.texts)

    def generates(self) -> bool:
        return self.phase is Phase.GENERATING

    def ended(self) -> bool:
        return self.phase is Phase.ENDED


def apply(stream: Stream, entry: Entry, arrived_ms: int, now_ms: int) -> Refusal | None:
    """Apply one entry that arrived in Redis at `arrived_ms`; repeats change nothing and are no error."""
    if stream.ended():
        return None
    stream.touched_ms = now_ms
    match entry:
        case Open():
            return None
        case Cancel():
            stream.cancelled = True
            stream.phase = Phase.ENDED
            return None
        case Append():
            refusal = _add_chunk(stream, entry.text, entry.tokens, entry.chunk)
        case Update():
            refusal = _replace_context(stream, entry)
        case Finish():
            refusal = _finish(stream, entry)
    if stream.phase is Phase.WAITING and stream.distinct_chunks >= (stream.expect or 0):
        stream.phase = Phase.GENERATING
        stream.finished_ms = arrived_ms
    return refusal


def next_timeout_ms(stream: Stream) -> int | None:
    """When `expire` has something to say, unless the stream is touched before; None for never."""
    if stream.ended():
        return None
    deadline = None if stream.options.deadline_ms is None else stream.opened_ms + stream.options.deadline_ms
    if stream.generates():
        # A stream that answers at its deadline with what has arrived is already answering.
        return deadline if stream.options.on_timeout == "fail" else None
    idle = stream.touched_ms + stream.options.idle_timeout_ms
    return idle if deadline is None else min(idle, deadline)


def expire(stream: Stream, now_ms: int) -> Timeout | None:
    """End or finish the stream if its time is over at `now_ms`."""
    at_ms = next_timeout_ms(stream)
    if at_ms is None or now_ms < at_ms:
        return None
    options = stream.options
    if options.deadline_ms is not None and now_ms >= stream.opened_ms + options.deadline_ms:
        code, message = ErrorCode.DEADLINE, f"the stream's deadline of {options.deadline_ms} ms has passed"
    else:
        code = ErrorCode.IDLE_TIMEOUT
        message = f"nothing was sent for {options.idle_timeout_ms} ms"
        if stream.phase is Phase.WAITING:
            message += f" and {stream.distinct_chunks} of {stream.expect} expected chunks are there"
    finish = options.on_timeout == "finish"
    if finish:
        stream.phase = Phase.GENERATING
        stream.finished_ms = now_ms
    else:
        stream.phase = Phase.ENDED
    return Timeout(code, message, finish)


def answer_now(stream: Stream, now_ms: int) -> None:
    """Answer with what has arrived, as an earlier attempt has begun to do."""
    if stream.phase in (Phase.OPEN, Phase.WAITING):
        stream.phase = Phase.GENERATING
        stream.finished_ms = now_ms


def _add_chunk(stream: Stream, text: str | None, tokens: tuple[int, ...] | None, chunk: str | None) -> Refusal | None:
    if chunk is not None and chunk in stream.chunk_ids:
        return None
    if stream.generates():
        return Refusal(ErrorCode.CHUNK_AFTER_FINISH, "the stream has been finished; this chunk came too late")
    if stream.is_text is not None and stream.is_text is not (text is not None):
        return _mixed(stream)
    if text is not None:
        stream.texts.append(text)
        if chunk is not None:
            stream.known[chunk] = text
    elif tokens is not None:
        worst = max(tokens, default=0)
        if worst >= stream.vocabulary_tokens:
            return Refusal(
                ErrorCode.MALFORMED,
                f"tokens holds the id {worst}; the model's ids go up to {stream.vocabulary_tokens - 1}",
                "tokens",
            )
        stream.tokens.extend(tokens)
    else:
        return None
    stream.is_text = text is not None
    stream.distinct_chunks += 1
    if chunk is not None:
        stream.chunk_ids.add(chunk)
    return None


def _replace_context(stream: Stream, update: Update) -> Refusal | None:
    if update.version is not None and stream.version is not None and update.version <= stream.version:
        return None
    if stream.phase is not Phase.OPEN:
        return Refusal(ErrorCode.CHUNK_AFTER_FINISH, "the stream has been finished; this update came too late")
    if stream.is_text is False:
        return _mixed(stream)
    sent = {item.id: item.text for item in update.context if item.text is not None}
    # In place and not in a copy: a small update must not cost as much as all that the stream has ever sent.
    known = stream.known
    unknown = next((item.id for item in update.context if item.id not in sent and item.id not in known), None)
    if unknown is not None:
        return Refusal(ErrorCode.UNKNOWN_ITEM, f"context names the item {unknown!r}, never sent with a text", "context")
    texts = [sent[item.id] if item.id in sent else known[item.id] for item in update.context]
    chars = sum(map(len, texts)) + len(stream.options.separator) * len(texts)
    if chars > MAX_STREAM_BYTES:
        # An id is short, and may be named thousands of times; the text behind it may be long.
        return Refusal(
            ErrorCode.STREAM_TOO_LARGE,
            f"the items make a context of {chars} characters, a stream may have {MAX_STREAM_BYTES}",
            "context",
        )
    known.update(sent)
    stream.texts = texts
    stream.is_text = True
    if update.version is not None:
        stream.version = update.version
    return None


def _finish(stream: Stream, finish: Finish) -> Refusal | None:
    carries_chunk = finish.text is not None or finish.tokens is not None
    if stream.phase is not Phase.OPEN:
        # Without a chunk id, a repeat of the first finish cannot be told from another one: it must change nothing.
        if carries_chunk and finish.chunk is not None:
            return _add_chunk(stream, finish.text, finish.tokens, finish.chunk)
        return None
    refusal = _add_chunk(stream, finish.text, finish.tokens, finish.chunk) if carries_chunk else None
    if refusal is None:
        stream.expect = finish.expect
        stream.phase = Phase.WAITING
    return refusal


def _mixed(stream: Stream) -> Refusal:
    kind, other = ("text", "tokens") if stream.is_text else ("tokens", "text")
    return Refusal(
        ErrorCode.MIXED_INPUT, f"this stream takes {kind}, as its first chunk was; {other} cannot follow", other
    )
