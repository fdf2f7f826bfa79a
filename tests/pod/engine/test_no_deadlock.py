"""Named regressions: streams that hold all KV blocks while work is left. Stock vLLM never takes another step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from driving import Answers, Driver, tokens
from engines import Engine, Shape
from histories import POLICIES, Arrival, History, Kind, StreamHistory, run_history
from invariants import check_ended

PARKED = 16
PARKED_TOKENS = 64
SHAPE = Shape(blocks=PARKED * PARKED_TOKENS // 32, budget_tokens=256, slots=PARKED + 1, prefix_caching=False)
NEWCOMER = tokens(9, 100)


def prompts() -> list[list[int]]:
    return [tokens(100 + i, PARKED_TOKENS) for i in range(PARKED)]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_newcomer_and_then_everybody_finishes(
    engines: Callable[[bool], Engine], answers: Answers, policy: str, asynchronous: bool
) -> None:
    expected = answers.of([NEWCOMER, *(prompt + tokens(7, 5) for prompt in prompts())], 4)
    engine = engines(asynchronous)
    engine.renew(Shape(**{**{name: getattr(SHAPE, name) for name in SHAPE.__slots__}, "policy": policy}))
    driver = Driver(engine)
    for i, prompt in enumerate(prompts()):
        driver.open(f"parked-{policy}-{i}", prompt, 4)
    driver.run()
    assert engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 0
    assert not driver.busy
    driver.add(f"newcomer-{policy}", NEWCOMER, 4)
    driver.run()
    assert driver.outputs[f"newcomer-{policy}"] == expected[0]
    for i in range(PARKED):
        driver.append(f"parked-{policy}-{i}", tokens(7, 5), last=True)
    driver.run()
    assert [driver.outputs[f"parked-{policy}-{i}"] for i in range(PARKED)] == expected[1:]
    check_ended(engine)


def test_stock_vllm_stands_still(engines: Callable[[bool], Engine]) -> None:
    """If this fails, vLLM has mended it: look at our overrides again."""
    engine = engines(False)
    engine.renew(Shape(**{**{name: getattr(SHAPE, name) for name in SHAPE.__slots__}, "stock": True}))
    driver = Driver(engine)
    for i, prompt in enumerate(prompts()):
        driver.send(f"stock-{i}", prompt, max_tokens=1, resumable=True)
    for _ in range(60):
        if driver.busy:
            engine.core.step_fn()
    driver.add("stock-newcomer", NEWCOMER, 4)
    executed_steps = sum(bool(engine.core.step_fn()[1]) for _ in range(100))
    assert executed_steps == 0
    assert engine.scheduler.has_unfinished_requests()
    engine.abandon()


def test_readmitted_holders_of_all_blocks_with_nobody_parked(
    engines: Callable[[bool], Engine], answers: Answers
) -> None:
    """Once a deadlock under `default`: each stream holds one of two blocks and is finished. The longer one waits for a
    second block, the other for its turn behind it, and nothing runs from which vLLM would take memory."""
    longer = StreamHistory(
        0, 31, 1, 2, (Arrival(Kind.APPEND, 2, 1, 2), Arrival(Kind.APPEND, 0, 1, 3), Arrival(Kind.FINISH))
    )
    shorter = StreamHistory(0, 1, 2, 2, (Arrival(Kind.APPEND, 2, 1, 1), Arrival(Kind.FINISH)))
    history = History(
        (longer, shorter),
        asynchronous=False,
        prefix_caching=False,
        policy="default",
        spare_blocks=0,
        budget_tokens=256,
        slots=8,
        max_wait_s=60.0,
    )
    assert history.shape().blocks == 2
    expected = answers.of([longer.prompts()[-1], shorter.prompts()[-1]], 2)
    outputs = run_history(engines(False), history)
    assert [outputs[0], outputs[1]] == expected
    assert engines(False).scheduler.counters.preemptions["recompute", "memory"] > 0
