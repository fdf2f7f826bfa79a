from __future__ import annotations

from typing import Any

import pytest

from stream2llm_operator.leasing import LEASE_S, RENEW_DEADLINE_S, RETRY_S, Step, next_step


def lease(holder: str | None) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "1"}, "spec": {"holderIdentity": holder} if holder is not None else {}}


@pytest.mark.parametrize(
    ("found", "unchanged_s", "step"),
    [
        (None, 0.0, Step.CREATE),
        (lease("me"), 0.0, Step.RENEW),
        (lease("me"), 1000.0, Step.RENEW),
        (lease("other"), 0.0, Step.WAIT),
        (lease("other"), LEASE_S - 0.01, Step.WAIT),
        (lease("other"), LEASE_S, Step.TAKE),
        (lease(""), 0.0, Step.TAKE),
        (lease(None), 0.0, Step.TAKE),
    ],
)
def test_next_step(found: dict[str, Any] | None, unchanged_s: float, step: Step) -> None:
    assert next_step(found, "me", unchanged_s) is step


def test_a_holder_ends_before_its_lease_can_be_taken() -> None:
    """Its last try, and that try's time limit, lie before the end of the lease."""
    assert RENEW_DEADLINE_S + RETRY_S < LEASE_S
