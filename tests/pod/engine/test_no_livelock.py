"""Named regressions: preemption that goes round and round while nobody gets anywhere."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from driving import Driver, tokens
from engines import Engine, Shape
from histories import POLICIES
from invariants import check_ended
from vllm.v1.request import RequestStatus

from stream2llm_pod.engine.simulation.tokens import expected_output

pytestmark = pytest.mark.simulated
OURS = [policy for policy in POLICIES if policy != "default"]
KINDS = ("recompute", "swap", "cost")
BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


class Watched(Driver):
    """Notes how far each request had got when it was preempted."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.reached: dict[str, list[tuple[int, bool]]] = defaultdict(list)
        note = self.scheduler._note_preemption

        def noting(request: Any) -> None:
            parked = request.status == RequestStatus.WAITING_FOR_STREAMING_REQ
            self.reached[request.request_id].append((request.num_computed_tokens, parked))
            note(request)

        self.scheduler._note_preemption = noting

    def check_progress(self) -> None:
        """Nothing was preempted twice without having got further in between, but for streams that had computed all they
        knew and only waited for their producer."""
        for name, reached in self.reached.items():
            for (before, _), (now, parked) in itertools.pairwise(reached):
                assert now > before or (parked and now == before), f"{name} was preempted at {reached}"


@BOTH
@pytest.mark.parametrize("policy", OURS)
def test_preempt_resume_loop(simulated_engines: Callable[[bool], Engine], policy: str, asynchronous: bool) -> None:
    """A long prompt is not admitted to the room of one chunk, only to stall, be preempted and start over."""
    engine = simulated_engines(asynchronous)
    engine.renew(Shape(blocks=20, budget_tokens=64, policy=policy, prefix_caching=False))
    driver = Watched(engine)
    prompts = {f"{policy}-{i}": tokens(40 + i, 500) for i in range(5)}
    for name, prompt in prompts.items():
        driver.add(name, prompt, 40)
        driver.step(3)
    driver.run()
    for name, prompt in prompts.items():
        assert driver.outputs[name] == expected_output(prompt, 40, engine.vocabulary)
    assert driver.reached == {}
    assert engine.scheduler.counters.recomputed_tokens == 0
    assert engine.scheduler.counters.prefill_tokens == 5 * 500
    check_ended(engine)


@BOTH
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", POLICIES)
def test_macro_livelock(
    simulated_engines: Callable[[bool], Engine], policy: str, kind: str, asynchronous: bool
) -> None:
    """Many requests fit while their prompts are short and outgrow the memory together while they decode: some must go,
    and those that stay must end before these come back."""
    engine = simulated_engines(asynchronous)
    engine.renew(
        Shape(blocks=17, budget_tokens=256, policy=policy, prefix_caching=False, preemption=kind, host_blocks=8)
    )
    driver = Watched(engine)
    prompts = {f"{policy}-{kind}-{i}": tokens(60 + i, 60) for i in range(8)}
    for name, prompt in prompts.items():
        driver.add(name, prompt, 60)
    driver.run()
    for name, prompt in prompts.items():
        assert driver.outputs[name] == expected_output(prompt, 60, engine.vocabulary)
    assert driver.reached, "nobody was preempted: the test is too easy"
    if policy != "default":
        driver.check_progress()
    # An instrumented production run of others saw four for the most unlucky request.
    assert max(map(len, driver.reached.values())) <= 4
    check_ended(engine)


@BOTH
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", OURS)
def test_chunks_that_arrive_in_turn(
    simulated_engines: Callable[[bool], Engine], policy: str, kind: str, asynchronous: bool
) -> None:
    """With every chunk the newest stream could push the others out, and each would compute the same again and again."""
    engine = simulated_engines(asynchronous)
    engine.renew(
        Shape(blocks=25, budget_tokens=64, policy=policy, prefix_caching=False, preemption=kind, host_blocks=20)
    )
    driver = Watched(engine)
    names = [f"{policy}-{kind}-{i}" for i in range(3)]
    prompts = {name: tokens(80 + i, 300) for i, name in enumerate(names)}
    for name in names:
        driver.open(name, prompts[name], 4)
    for turn in range(30):
        name = names[turn % len(names)]
        driver.append(name, tokens(turn % 10, 10))
        prompts[name] = prompts[name] + tokens(turn % 10, 10)
        driver.step(2)
    for name in names:
        driver.finish(name)
    driver.run()
    for name in names:
        assert driver.outputs[name] == expected_output(prompts[name], 4, engine.vocabulary)
    driver.check_progress()
    check_ended(engine)
