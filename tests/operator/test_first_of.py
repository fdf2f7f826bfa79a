from __future__ import annotations

import asyncio

import pytest

from stream2llm_operator.reconciling import first_of
from stream2llm_operator.status.diagnosing import Finding

A, B = Finding("NameConflict", "a"), Finding("TemplateRejected", "b")


def run(*steps: Finding | Exception | None) -> tuple[Finding | Exception | None, int]:
    """The outcome, and how many steps had ended by then; earlier ones take longer."""
    ended = 0

    async def step(number: int, outcome: Finding | Exception | None) -> Finding | None:
        nonlocal ended
        for _ in range(len(steps) - number):
            await asyncio.sleep(0)
        ended += 1
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def inner() -> Finding | None:
        return await first_of([step(number, outcome) for number, outcome in enumerate(steps)])

    try:
        return asyncio.run(inner()), ended
    except OSError as error:
        return error, ended


@pytest.mark.parametrize(("steps", "found"), [((), None), ((None, None), None), ((None, A, B), A), ((B, None, A), B)])
def test_the_first_in_order_is_told_and_all_have_ended(
    steps: tuple[Finding | None, ...], found: Finding | None
) -> None:
    assert run(*steps) == (found, len(steps))


def test_what_failed_is_raised_once_all_have_ended() -> None:
    away = OSError("away")
    assert run(None, A, away, None) == (away, 4)
