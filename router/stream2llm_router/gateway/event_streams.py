"""Server-sent events, to readers that may be slow or leave without a word."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stream2llm.ending import end_tasks
from stream2llm.events import ErrorEvent, encode, is_terminal, parse_event
from stream2llm_router.gateway.streams import RawEvent

MEDIA_TYPE = "text/event-stream"
SILENCE_S = 15.0
"""A comment is sent after so much silence, which keeps proxies from closing and tells us of readers that have gone."""
SEND_TIMEOUT_S = 60.0
"""A reader that takes nothing for so long is given up; it may resume."""
HELLO = b"retry: 1000\n\n"
COMMENT = b": \n\n"

_LINE_END = re.compile(r"\r\n|\r|\n")


def frame(event: str, data: str, event_id: str | None = None) -> bytes:
    """One event. Lines end at CR and LF only: other separators are characters of a text and must arrive as such."""
    lines = [] if event_id is None else [f"id: {event_id}"]
    lines.append(f"event: {_LINE_END.sub(' ', event)}")
    lines += [f"data: {line}" for line in _LINE_END.split(data)]
    return ("\n".join(lines) + "\n\n").encode("utf-8", "replace")


def frame_of(raw: RawEvent) -> tuple[bytes, bool]:
    """The frame of a reply entry, also of a kind that this version does not know, and whether it is the last one."""
    entry_id, fields = raw
    event = fields.get(b"event", b"").decode("utf-8", "replace")
    data = fields.get(b"data", b"").decode("utf-8", "replace")
    return frame(event, data, entry_id.decode()), ends(fields)


def ends(fields: dict[bytes, bytes]) -> bool:
    """Whether a reply entry is the terminal event."""
    try:
        event = parse_event(fields)
    except ValueError:
        return False
    return event is not None and is_terminal(event)


def error_frame(error: ErrorEvent) -> bytes:
    """An error that is not in the reply, so it has no id to resume after."""
    fields = encode(error)
    return frame(fields["event"], fields["data"])


async def until_gone(receive: Receive) -> None:
    """Returns when the reader has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Outgoing:
    """Where frames go. Several tasks may write; each frame arrives whole."""

    def __init__(self, send: Send) -> None:
        self._send, self._turn = send, asyncio.Lock()

    async def write(self, body: bytes, *, more: bool = True) -> None:
        """Raises TimeoutError if the reader takes nothing for SEND_TIMEOUT_S."""
        async with self._turn, asyncio.timeout(SEND_TIMEOUT_S):
            await self._send({"type": "http.response.body", "body": body, "more_body": more})


class GuardedStream(Response):
    """A response in pieces whose end is always told to `closed`.

    pieces: what is sent. listen: what is done with the rest of the request meanwhile; it returns when the reader has
    gone, and that ends the response. Both get the response's Outgoing.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        *,
        closed: Callable[[], Any],
        listen: Callable[[Receive, Outgoing], Awaitable[None]] | None = None,
        status: int = 200,
        media_type: str | None = MEDIA_TYPE,
        headers: dict[str, str] | None = None,
    ) -> None:
        self._pieces, self._closed, self._listen = pieces, closed, listen
        self.status_code, self.media_type, self.background = status, media_type, None
        self.body = b""
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})
        # `Response` counts its empty body.
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outgoing = Outgoing(send)
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            listening = until_gone(receive) if self._listen is None else self._listen(receive, outgoing)
            sender = asyncio.ensure_future(self._send_all(outgoing))
            listener = asyncio.ensure_future(listening)
            try:
                await asyncio.wait({sender, listener}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await end_tasks((sender, listener))
            for task in (sender, listener):
                error = None if task.cancelled() else task.exception()
                if error is not None and not isinstance(error, TimeoutError | OSError):
                    raise error
        finally:
            closing = self._closed()
            if asyncio.iscoroutine(closing):
                await closing

    async def _send_all(self, outgoing: Outgoing) -> None:
        async with aclosing(self._pieces) as pieces:
            async for piece in pieces:
                await outgoing.write(piece)
        await outgoing.write(b"", more=False)


def problem_frame(code: str, message: str, field: str | None = None, *, terminal: bool = False) -> bytes:
    """What is wrong with an operation, as an `error` event."""
    return error_frame(ErrorEvent(code, message, field, terminal, None))


def dumped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()
