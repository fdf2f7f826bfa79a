"""How tasks are ended."""

from __future__ import annotations

import asyncio
import contextlib

from stream2llm.ending import end_tasks


def test_a_task_that_loses_a_cancellation_is_cancelled_again() -> None:
    """As a Redis command does whose answer comes at the same moment."""

    async def body() -> None:
        async def deaf() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
            await asyncio.sleep(3600)

        async def broken() -> None:
            raise ValueError("a mistake")

        tasks = [asyncio.create_task(work) for work in (deaf(), asyncio.sleep(3600), broken())]
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await end_tasks(tasks)
        assert [task.cancelled() for task in tasks] == [True, True, False]
        assert isinstance(tasks[2].exception(), ValueError)
        await end_tasks([])

    asyncio.run(body())
