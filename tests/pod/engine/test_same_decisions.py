"""The simulated engine takes the decisions of the real one: the same history, step by step the same plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from driving import Driver, tokens
from engines import Engine, Shape

pytestmark = pytest.mark.engine
BLOCKS = 24


def replay(engine: Engine, shape: Shape) -> list[tuple[Any, ...]]:
    """What each step computed, from where, and whom it preempted. Memory is short, so that streams give way."""
    scheduler = engine.renew(shape)
    plans: list[tuple[Any, ...]] = []
    schedule = scheduler.schedule

    def recorded(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        cached = output.scheduled_cached_reqs
        starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        plans.append(
            (
                dict(output.num_scheduled_tokens),
                starts,
                dict(scheduler.counters.preemptions),
                scheduler.upstream.free_blocks(),
            )
        )
        return output

    scheduler.schedule = recorded
    driver = Driver(engine)
    # Streams that append, one that updates, and whole prompts between them; 24 blocks hold 768 tokens.
    driver.open("a", tokens(1, 200), max_tokens=2)
    driver.step(2)
    driver.open("b", tokens(2, 150), max_tokens=2)
    driver.step(1)
    driver.open("c", tokens(3, 180), max_tokens=2)
    driver.step(6)
    driver.append("a", tokens(1, 330)[200:])
    driver.add("whole", tokens(4, 260), max_tokens=3)
    driver.step(3)
    driver.update("c", [*tokens(3, 100), *tokens(5, 120)])
    driver.step(2)
    driver.append("b", tokens(2, 240)[150:], last=True)
    driver.step(4)
    driver.append("a", tokens(1, 400)[330:], last=True)
    driver.update("c", [*tokens(3, 100), *tokens(5, 60), *tokens(6, 90)], last=True)
    driver.run()
    assert set(driver.finished) == {"a", "b", "c", "whole"}
    return plans


@pytest.mark.parametrize("policy", ["default", "fcfs", "mcps", "srpf", "auto"])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_real_and_simulated_engine_plan_the_same(
    real_engines: Callable[[bool], Engine],
    simulated_engines: Callable[[bool], Engine],
    policy: str,
    preemption: str,
) -> None:
    shape = Shape(
        blocks=BLOCKS, budget_tokens=96, policy=policy, preemption=preemption, host_blocks=60, swap_is_cheap=True
    )
    real = replay(real_engines(False), shape)
    simulated = replay(simulated_engines(False), shape)
    assert simulated == real
    assert len(real) >= 15
    # Not a history in which nothing had to be decided.
    assert sum(real[-1][2].values()) > 0
