"""NDJSON: one operation a line, split and read as the bytes come. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from stream2llm.composing import Fields, append_fields, cancel_fields, finish_fields, update_fields
from stream2llm.errors import ErrorCode, StreamError, stream_error
from stream2llm_router.gateway.bodies import (
    LATER_OPERATION,
    AppendOperation,
    CancelOperation,
    FinishOperation,
    OpenOperation,
    UpdateOperation,
)
from stream2llm_router.gateway.explaining import explain, field_of


class LineTooLong(Exception):
    """A line beyond the limit; the lines after it can be read."""


class Lines:
    """Lines of a body that comes in pieces. Blank lines count as none."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pieces: list[bytes] = []
        self._size_bytes = 0
        self._skipping = False

    def feed(self, piece: bytes) -> Iterator[bytes | LineTooLong]:
        """The lines that `piece` completes, or what is wrong with one."""
        *complete, rest = piece.split(b"\n")
        for part in complete:
            yield from self._complete(part)
        self._keep(rest)

    def end(self) -> Iterator[bytes | LineTooLong]:
        """The last line, if no line end came."""
        yield from self._complete(b"")

    def _complete(self, part: bytes) -> Iterator[bytes | LineTooLong]:
        self._keep(part)
        line, too_long = b"".join(self._pieces), self._skipping
        self._pieces, self._size_bytes, self._skipping = [], 0, False
        if too_long:
            yield LineTooLong(f"a line may have {self._max_bytes} bytes")
        elif line.strip():
            yield line

    def _keep(self, part: bytes) -> None:
        self._size_bytes += len(part)
        if self._size_bytes > self._max_bytes:
            self._pieces, self._skipping = [], True
        elif part:
            self._pieces.append(part)


def parse_open(line: bytes) -> OpenOperation:
    """The first operation. Raises StreamError."""
    try:
        return OpenOperation.model_validate_json(line)
    except ValidationError as error:
        raise _malformed(error) from None


def fields_of(stream: str, line: bytes) -> Fields:
    """The entry of a later operation on `stream`. Raises StreamError."""
    try:
        operation = LATER_OPERATION.validate_json(line)
    except ValidationError as error:
        raise _malformed(error) from None
    match operation:
        case AppendOperation():
            return append_fields(stream, operation.text, operation.tokens, operation.chunk)
        case UpdateOperation():
            return update_fields(stream, [item.model_dump() for item in operation.context], operation.version)
        case FinishOperation():
            return finish_fields(stream, operation.text, operation.tokens, operation.chunk, operation.expect)
        case CancelOperation():
            return cancel_fields(stream)


def _malformed(error: ValidationError) -> StreamError:
    first = error.errors(include_url=False, include_input=False)[0]
    message = explain(first, whole="the line")
    return stream_error(ErrorCode.MALFORMED, message, field=field_of(first), terminal=False)
