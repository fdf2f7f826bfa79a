"""The end of a response whose reader has left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from stream2llm_router.gateway.event_streams import GuardedStream


def test_a_reply_that_loses_its_cancellation_is_ended_all_the_same() -> None:
    """A call whose reader left while its reply was being asked for in Redis went on for ever, and cancelled nothing."""
    told: list[str] = []

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"first"
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        await asyncio.sleep(3600)

    async def respond() -> None:
        sent = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await sent.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message.get("body") == b"first":
                sent.set()

        response = GuardedStream(pieces(), closed=lambda: told.append("closed"))
        async with asyncio.timeout(60):
            await response({"type": "http"}, receive, send)

    asyncio.run(respond())
    assert told == ["closed"]
