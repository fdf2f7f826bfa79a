"""Errors as HTTP answers: one shape for all of them."""

from __future__ import annotations

from typing import Any

from fastapi import HTTPException
from redis.exceptions import RedisError

from stream2llm.errors import ErrorCode, RedisRefused, StreamError, Unreachable
from stream2llm_router.gateway.limits import LimitReached

_STATUS: dict[ErrorCode, int] = {
    ErrorCode.UNKNOWN_STREAM: 404,
    ErrorCode.OPEN_CONFLICT: 409,
    ErrorCode.STREAM_ENDED: 409,
    ErrorCode.CHUNK_AFTER_FINISH: 409,
    ErrorCode.CHUNK_TOO_LARGE: 413,
    ErrorCode.STREAM_TOO_LARGE: 413,
    ErrorCode.TOO_MANY_ITEMS: 413,
    ErrorCode.OVERLOADED: 503,
    ErrorCode.INTERNAL: 500,
}
UNPROCESSABLE = 422


class Problem(HTTPException):
    """An answer that is an error.

    code: one of the wire protocol's, or of docs/http.md; field: what is wrong in the request, if one field is.
    An HTTPException, because only those pass through FastAPI's reading of a body as they are.
    """

    def __init__(
        self, status: int, code: str, message: str, *, field: str | None = None, retry_after_s: int | None = None
    ) -> None:
        headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        super().__init__(status, message, headers)
        self.code, self.message, self.field = code, message, field

    def body(self, request_id: str) -> dict[str, Any]:
        return {
            "error": {"code": self.code, "message": self.message, "field": self.field, "request_id": request_id},
        }


def problem_of(error: Exception) -> Problem:
    """The answer for an error of the SDK, a limit or Redis. What Redis said may name keys and is not passed on."""
    if isinstance(error, StreamError):
        return Problem(_STATUS.get(error.code, UNPROCESSABLE), str(error.code), error.message, field=error.field)
    if isinstance(error, LimitReached):
        return Problem(429, "too_many_requests", str(error), retry_after_s=1)
    if isinstance(error, RedisRefused):
        return Problem(503, "redis_refused", "Redis refuses; the router's log says why", retry_after_s=5)
    if isinstance(error, Unreachable | RedisError | OSError):
        return Problem(503, "redis_unreachable", "Redis cannot be reached", retry_after_s=2)
    return Problem(500, str(ErrorCode.INTERNAL), "an error that nobody expected; the router's log has it")


def refused(code: str, stream: str) -> Problem:
    """The answer for what the enqueue script turned away."""
    messages = {
        ErrorCode.UNKNOWN_STREAM: f"no stream {stream!r} is open",
        ErrorCode.OPEN_CONFLICT: f"stream {stream!r} was opened with other messages, params or options",
        ErrorCode.STREAM_ENDED: f"stream {stream!r} has ended",
    }
    known = ErrorCode(code)
    return Problem(_STATUS[known], code, messages[known], field="stream")
