"""Error codes of the wire protocol, and the exceptions that the SDK raises for them."""

from __future__ import annotations

from enum import StrEnum


class ErrorCode(StrEnum):
    """The fixed list of codes in `error` events and rejected entries. `docs/wire-protocol.md` gives each a remedy."""

    MALFORMED = "malformed"
    UNKNOWN_OP = "unknown_op"
    UNKNOWN_STREAM = "unknown_stream"
    OPEN_CONFLICT = "open_conflict"
    STREAM_ENDED = "stream_ended"
    CHUNK_AFTER_FINISH = "chunk_after_finish"
    CHUNK_TOO_LARGE = "chunk_too_large"
    STREAM_TOO_LARGE = "stream_too_large"
    TOO_MANY_ITEMS = "too_many_items"
    UNKNOWN_ITEM = "unknown_item"
    MIXED_INPUT = "mixed_input"
    CONTEXT_TOO_LONG = "context_too_long"
    INVALID_PARAMS = "invalid_params"
    UNSUPPORTED_PARAMS = "unsupported_params"
    UNKNOWN_MODEL = "unknown_model"
    MARKER = "marker"
    INVALID_OPTIONS = "invalid_options"
    IDLE_TIMEOUT = "idle_timeout"
    DEADLINE = "deadline"
    OVERLOADED = "overloaded"
    ENGINE_ERROR = "engine_error"
    MODEL_CHANGED = "model_changed"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    LOST = "lost"
    INTERNAL = "internal"


class Stream2LLMError(Exception):
    """Base of everything the SDK raises on purpose."""


class StreamError(Stream2LLMError):
    """A stream ended with an error, or one of its entries was refused.

    code: one of ErrorCode; field: the field that is wrong, if one is; terminal: the stream is over;
    ingress_id: the entry it is about.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        field: str | None = None,
        terminal: bool = True,
        ingress_id: str | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}" + (f" (field {field})" if field else ""))
        self.code, self.message, self.field = code, message, field
        self.terminal, self.ingress_id = terminal, ingress_id


class InvalidRequest(StreamError):
    """What was sent is wrong; sending it again will fail again."""


class StreamTimedOut(StreamError):
    """The stream was idle for too long, or past its deadline."""


class Overloaded(StreamError):
    """No pod had room; try again later."""


class ServerFailed(StreamError):
    """The serving side failed; the same request may succeed."""


class NoAnswer(Stream2LLMError, TimeoutError):
    """Nothing came within the time the caller allowed."""


class ReplyGone(Stream2LLMError):
    """The reply has expired, or it was trimmed or lost with its Redis server."""


class Unreachable(Stream2LLMError, ConnectionError):
    """Redis cannot be reached."""


class RedisRefused(Stream2LLMError):
    """Redis answers, and refuses: a wrong password, a key that this user may not touch, a full memory."""


_CLASSES: dict[ErrorCode, type[StreamError]] = {
    ErrorCode.IDLE_TIMEOUT: StreamTimedOut,
    ErrorCode.DEADLINE: StreamTimedOut,
    ErrorCode.OVERLOADED: Overloaded,
    ErrorCode.ENGINE_ERROR: ServerFailed,
    ErrorCode.MODEL_CHANGED: ServerFailed,
    ErrorCode.ATTEMPTS_EXHAUSTED: ServerFailed,
    ErrorCode.LOST: ServerFailed,
    ErrorCode.INTERNAL: ServerFailed,
}


def stream_error(
    code: str, message: str, *, field: str | None = None, terminal: bool = True, ingress_id: str | None = None
) -> StreamError:
    """The exception for a code; one that this version does not know counts as `internal`."""
    known = ErrorCode(code) if code in ErrorCode.__members__.values() else ErrorCode.INTERNAL
    kind = _CLASSES.get(known, InvalidRequest)
    return kind(known, message, field=field, terminal=terminal, ingress_id=ingress_id)
