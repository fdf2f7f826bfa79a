"""Around every request: an id, bounds on its body, one line in the log, and errors in one shape."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
from collections.abc import Iterable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stream2llm_router.gateway.limits import Limits
from stream2llm_router.gateway.metrics import OTHER, GatewayMetrics
from stream2llm_router.gateway.problems import Problem

access = logging.getLogger("stream2llm_router.access")
logger = logging.getLogger(__name__)

BODY_TIMEOUT_S = 60.0
"""The longest silence within a request body."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
QUIET = ("/health", "/metrics", "/overview.json", "/status.json")
"""Asked all day by machines; only their failures are logged."""


def request_id(scope: Scope) -> str:
    return str(scope["state"]["request_id"])


class RequestLog:
    """Outermost: gives the request its id, and writes what became of it as one JSON object a line.

    Neither bodies nor headers nor query strings are logged, as they hold prompts and tokens.
    """

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        identifier = given.decode() if _REQUEST_ID.fullmatch(given) else secrets.token_hex(12)
        scope.setdefault("state", {}).update(request_id=identifier, tenant=None, stream=None)
        started_s, status, sent_bytes, complete = time.perf_counter(), 0, 0, False

        async def sending(message: Message) -> None:
            nonlocal status, sent_bytes, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", identifier.encode())]
            elif message["type"] == "http.response.body":
                sent_bytes += len(message.get("body", b""))
                complete = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception:
            logger.exception("request %s failed", identifier)
            if not status:
                problem = Problem(500, "internal", "an error that nobody expected; the router's log has it")
                await answer(problem, scope, sending)
        finally:
            # Cancelled or broken off before an answer: as nginx has it.
            status = status or 499
            self._told(scope, status, started_s, sent_bytes, complete)

    def _told(self, scope: Scope, status: int, started_s: float, sent_bytes: int, complete: bool) -> None:
        seconds = time.perf_counter() - started_s
        route = getattr(scope.get("route"), "path", OTHER)
        self._metrics.answered(route, status, seconds)
        if scope["path"] in QUIET and status < 500:
            return
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "request_id": scope["state"]["request_id"],
            "tenant": scope["state"]["tenant"],
            "method": scope["method"],
            "route": route,
            "stream": scope.get("path_params", {}).get("stream") or scope["state"]["stream"],
            "status": status,
            "complete": complete,
            "seconds": round(seconds, 4),
            "sent_bytes": sent_bytes,
        }
        access.info("%s", json.dumps(line))


class BodyLimits:
    """Counts request bodies as they come: each may be so long, all that are in memory so much, none may dawdle.

    free: paths that read their bodies piece by piece and bound them themselves.
    """

    def __init__(self, app: ASGIApp, limits: Limits, free: Iterable[str]) -> None:
        self._app, self._limits, self._free = app, limits, frozenset(free)
        self._buffered_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._free:
            return await self._app(scope, receive, send)
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > self._limits.max_body_bytes:
            return await answer(self._too_large(), scope, send)
        own_bytes, whole = 0, False

        async def receiving() -> Message:
            nonlocal own_bytes, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout(BODY_TIMEOUT_S):
                    message = await receive()
            except TimeoutError:
                raise Problem(408, "body_timeout", f"no more of the body came for {BODY_TIMEOUT_S:.0f} s") from None
            piece_bytes = len(message.get("body", b""))
            own_bytes += piece_bytes
            self._buffered_bytes += piece_bytes
            whole = message["type"] != "http.request" or not message.get("more_body", False)
            if own_bytes > self._limits.max_body_bytes:
                raise self._too_large()
            if self._buffered_bytes > self._limits.max_buffered_bytes:
                raise Problem(503, "overloaded", "too many large requests at a time", retry_after_s=1)
            return message

        try:
            await self._app(scope, receiving, send)
        finally:
            self._buffered_bytes -= own_bytes

    def _too_large(self) -> Problem:
        return Problem(413, "body_too_large", f"a body may have {self._limits.max_body_bytes} bytes")


async def answer(problem: Problem, scope: Scope, send: Send) -> None:
    """Send a problem as a whole response."""
    body = json.dumps(problem.body(request_id(scope))).encode()
    headers: list[Any] = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in (problem.headers or {}).items()]
    await send({"type": "http.response.start", "status": problem.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": body})
