"""Ending what runs in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

CANCEL_AGAIN_S = 0.5


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel them until they are over: one cancellation may be lost.

    redis-py sends its commands within `asyncio.wait_for`, and before Python 3.12 that returns the result in place of a
    cancellation that comes at the same moment.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
