"""The one-call form: operations come in as lines while the events of the reply go out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from fastapi import APIRouter, Request, Response
from starlette.types import Receive

from stream2llm.composing import cancel_fields, finish_fields
from stream2llm.errors import ErrorCode, Stream2LLMError, StreamError
from stream2llm.following import START
from stream2llm_router.gateway.dependencies import GatewayOf, TenantOf, problems
from stream2llm_router.gateway.event_streams import GuardedStream, Outgoing, problem_frame, until_gone
from stream2llm_router.gateway.gateway import Gateway
from stream2llm_router.gateway.operations import Lines, LineTooLong, fields_of, parse_open
from stream2llm_router.gateway.problems import Problem, problem_of
from stream2llm_router.gateway.requests import BODY_TIMEOUT_S
from stream2llm_router.gateway.stream_routes import EVENTS_RESPONSE, fields_of_open, reply_frames

logger = logging.getLogger(__name__)
router = APIRouter(tags=["streams"])
RUN_PATH = "/v1/streams:run"
NDJSON = "application/x-ndjson"
_EXAMPLE = (
    '{"op": "open", "prompt": "{context}\\n\\nWhat is this about?"}\n'
    '{"op": "append", "text": "First page."}\n'
    '{"op": "finish"}\n'
)


class Gone(Exception):
    """The caller has left before its body was complete."""


class Body:
    """The lines of a request's body as they come."""

    def __init__(self, receive: Receive, max_line_bytes: int) -> None:
        self._receive, self._lines = receive, Lines(max_line_bytes)
        self._ready: Iterator[bytes | LineTooLong] = iter(())
        self._whole = False

    async def next(self) -> bytes | LineTooLong | None:
        """The next line; None at the end of the body. Raises Gone."""
        while True:
            line = next(self._ready, None)
            if line is not None or self._whole:
                return line
            message = await self._receive()
            if message["type"] != "http.request":
                raise Gone
            self._whole = not message.get("more_body", False)
            found = list(self._lines.feed(message.get("body", b"")))
            self._ready = iter(found + list(self._lines.end()) if self._whole else found)


@router.post(
    RUN_PATH,
    response_class=Response,
    responses={**EVENTS_RESPONSE, **problems(408, 409, 413, 422, 429)},
    summary="A whole stream in one call",
    openapi_extra={
        "requestBody": {
            "required": True,
            "description": "One JSON object a line: an `open`, then `append`, `update`, `finish` or `cancel`. They may "
            "be sent as they come up, while events are already read. The end of the body finishes the stream, if no "
            "line has. A line after the first that is wrong gives an `error` event, and the stream goes on without it.",
            "content": {NDJSON: {"schema": {"type": "string"}, "example": _EXAMPLE}},
        }
    },
)
async def run(request: Request, gateway: GatewayOf, tenant: TenantOf) -> Response:
    """Whoever hangs up cancels the stream."""
    body = Body(request.receive, gateway.settings.limits.max_body_bytes)
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            first = await body.next()
    except TimeoutError:
        raise Problem(408, "body_timeout", f"no operation came for {BODY_TIMEOUT_S:.0f} s") from None
    except Gone:
        return Response(status_code=400)
    if first is None:
        raise Problem(422, str(ErrorCode.MALFORMED), "the first line must be an open operation", field="op")
    if isinstance(first, LineTooLong):
        raise Problem(413, "body_too_large", str(first))
    stream, fields = fields_of_open(request, parse_open(first))
    gateway.readers.take(tenant)
    try:
        await gateway.open(tenant, stream, fields)
    except BaseException:
        gateway.readers.give_back(tenant)
        raise
    call = Call(gateway, tenant, stream, body)
    return GuardedStream(
        reply_frames(gateway, tenant, stream, START, []),
        listen=call.listen,
        closed=call.close,
        headers={"X-Stream-Id": stream},
    )


class Call:
    """One such call after its open."""

    def __init__(self, gateway: Gateway, tenant: str, stream: str, body: Body) -> None:
        self._gateway, self._tenant, self._stream, self._body = gateway, tenant, stream, body
        self._line = 1
        self._abandoned = False

    async def listen(self, receive: Receive, outgoing: Outgoing) -> None:
        """Take the operations; returns when the caller has gone."""
        self._abandoned = True
        finished = False
        try:
            while (line := await self._body.next()) is not None:
                self._line += 1
                finished = await self._take(line, outgoing) or finished
            if not finished:
                await self._write(finish_fields(self._stream, None, None, None, None), outgoing)
            await until_gone(receive)
        except Gone:
            return
        except asyncio.CancelledError:
            # The reply is complete, or the router stops: the caller has not left.
            self._abandoned = False
            raise

    async def _take(self, line: bytes | LineTooLong, outgoing: Outgoing) -> bool:
        """Write one operation; whether it ends the context."""
        try:
            if isinstance(line, LineTooLong):
                raise Problem(413, "body_too_large", str(line))
            fields = fields_of(self._stream, line)
        except (StreamError, Problem) as error:
            await self._tell(error, outgoing)
            return False
        await self._write(fields, outgoing)
        return fields[b"op"] in (b"finish", b"cancel")

    async def _write(self, fields: dict[bytes, bytes], outgoing: Outgoing) -> None:
        try:
            await self._gateway.streams.enqueue(self._tenant, fields)
        except Problem as error:
            await self._tell(error, outgoing)
        except Stream2LLMError as error:
            await self._tell(problem_of(error), outgoing)

    async def _tell(self, error: StreamError | Problem, outgoing: Outgoing) -> None:
        message = f"line {self._line}: {error.message}"
        await outgoing.write(problem_frame(str(error.code), message, error.field))

    async def close(self) -> None:
        """Give the reader's place back, and end a stream that nobody waits for."""
        self._gateway.readers.give_back(self._tenant)
        if self._abandoned:
            with contextlib.suppress(Stream2LLMError, Problem):
                await self._gateway.streams.enqueue(self._tenant, cancel_fields(self._stream))
