"""Victims' KV goes to host memory and comes back: what is copied, what is not, and what becomes of the slots."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from driving import Answers, Driver, tokens
from engines import Engine, Shape
from invariants import check_ended

_numbers = itertools.count()
PROMPT = tokens(1, 100)
"""Three blocks and a bit: the last one is partial."""
RIVAL = tokens(5, 150)
"""With its output it needs all of the pool, so whatever else is there must go."""
SHAPE = Shape(blocks=5, budget_tokens=64, preemption="swap", host_blocks=8, prefix_caching=False)
BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def shape(**changes: object) -> Shape:
    return Shape(**{**{name: getattr(SHAPE, name) for name in SHAPE.__slots__}, **changes})  # type: ignore[arg-type]


def bits(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.int32)


def swap_out(driver: Driver, prompt: list[int] = PROMPT) -> str:
    """An open stream whose computed prompt has been swapped out, with the rival in its place."""
    name = f"{next(_numbers)}"
    driver.open(name, prompt, 4)
    driver.run()
    driver.add(f"{name}-rival", RIVAL, 2)
    while driver.scheduler.streams[name].preemptions == 0:
        driver.step()
    return name


@BOTH
@pytest.mark.parametrize("caching", [False, True], ids=["no-caching", "caching"])
def test_swapped_tokens_are_not_computed_again(
    engines: Callable[[bool], Engine], answers: Answers, asynchronous: bool, caching: bool
) -> None:
    chunk = tokens(7, 20)
    [expected] = answers.of([PROMPT + chunk], 4)
    engine = engines(asynchronous)
    engine.renew(shape(prefix_caching=caching))
    driver = Driver(engine)
    name = swap_out(driver)
    assert driver.scheduler.host_pool.tokens(name) == 100
    assert driver.scheduler.host_pool.used_slots == 4
    driver.append(name, chunk, last=True)
    driver.run()
    assert driver.outputs[name] == expected
    report = driver.reports[name]
    assert report["preemptions"] == 1
    assert (report["swapped_tokens"], report["recomputed_tokens"]) == (100, 0)
    assert report["prefilled_before_finish_tokens"] == 100
    assert driver.scheduler.counters.preemptions["swap", "memory"] == 1
    assert driver.scheduler.counters.swapped_bytes == dict.fromkeys(("out", "in"), 4 * driver.scheduler._block_bytes)
    check_ended(engine)


@BOTH
def test_an_empty_finish_computes_one_token(
    engines: Callable[[bool], Engine], answers: Answers, asynchronous: bool
) -> None:
    [expected] = answers.of([PROMPT], 4)
    engine = engines(asynchronous)
    engine.renew(SHAPE)
    driver = Driver(engine)
    name = swap_out(driver)
    driver.finish(name)
    driver.run()
    assert driver.outputs[name] == expected
    assert (driver.reports[name]["swapped_tokens"], driver.reports[name]["recomputed_tokens"]) == (99, 1)
    check_ended(engine)


@BOTH
@pytest.mark.parametrize(("kept", "slots", "restored"), [(0, 0, 0), (1, 1, 1), (32, 1, 32), (70, 3, 70), (100, 4, 100)])
def test_an_update_trims_what_was_swapped(
    engines: Callable[[bool], Engine],
    answers: Answers,
    asynchronous: bool,
    kept: int,
    slots: int,
    restored: int,
) -> None:
    updated = PROMPT[:kept] + tokens(6, 30)
    [expected] = answers.of([updated], 4)
    engine = engines(asynchronous)
    engine.renew(SHAPE)
    driver = Driver(engine)
    name = swap_out(driver)
    driver.update(name, updated, last=True)
    assert driver.scheduler.host_pool.used_slots == slots
    driver.run()
    assert driver.outputs[name] == expected
    assert driver.reports[name]["swapped_tokens"] == restored
    assert driver.reports[name]["invalidated_tokens"] == 100 - kept
    assert driver.reports[name]["prefilled_before_finish_tokens"] == kept
    check_ended(engine)


@BOTH
@pytest.mark.parametrize("host_blocks", [0, 1, 3])
def test_a_full_pool_means_recomputing(
    engines: Callable[[bool], Engine], answers: Answers, asynchronous: bool, host_blocks: int
) -> None:
    [expected] = answers.of([PROMPT], 4)
    engine = engines(asynchronous)
    engine.renew(shape(host_blocks=host_blocks))
    driver = Driver(engine)
    name = swap_out(driver)
    assert driver.scheduler.host_pool.holders == frozenset()
    driver.finish(name)
    driver.run()
    assert driver.outputs[name] == expected
    assert (driver.reports[name]["swapped_tokens"], driver.reports[name]["recomputed_tokens"]) == (0, 100)
    assert driver.scheduler.counters.preemptions["swap", "memory"] == 0
    check_ended(engine)


@BOTH
def test_an_abort_while_swapped_gives_the_slots_back(engines: Callable[[bool], Engine], asynchronous: bool) -> None:
    engine = engines(asynchronous)
    engine.renew(SHAPE)
    driver = Driver(engine)
    name = swap_out(driver)
    driver.abort(name)
    assert driver.scheduler.host_pool.used_slots == 0
    driver.run()
    check_ended(engine)
    assert driver.scheduler.host_pool.free_slots == driver.scheduler.host_pool.total_slots


@BOTH
def test_a_decoding_request_goes_and_comes_back(
    engines: Callable[[bool], Engine], answers: Answers, asynchronous: bool
) -> None:
    """Its output tokens are swapped like its prompt, and none is sampled twice."""
    long, short = tokens(3, 60), tokens(4, 130)
    expected = answers.of([long, short], 8)
    engine = engines(asynchronous)
    engine.renew(shape(policy="fcfs"))
    driver = Driver(engine)
    # Older, so it may take memory from the younger one.
    driver.open("elder", tokens(4, 10), 8)
    driver.run()
    driver.add("younger", long, 8)
    while len(driver.outputs["younger"]) < 3:
        driver.step()
    driver.update("elder", short, last=True)
    driver.run()
    assert driver.outputs["younger"] == expected[0]
    assert driver.outputs["elder"] == expected[1]
    # Asynchronously it always has a step in flight, and ends before it can be preempted.
    assert driver.scheduler.counters.preemptions["swap", "memory"] == (not asynchronous)
    assert driver.scheduler.counters.recomputed_tokens == 0
    check_ended(engine)


@BOTH
def test_several_streams_swap_out_and_in_in_one_step(
    engines: Callable[[bool], Engine], answers: Answers, asynchronous: bool
) -> None:
    prompts = {f"{next(_numbers)}": tokens(20 + i, 33 + i) for i in range(6)}
    expected = answers.of(list(prompts.values()), 4)
    engine = engines(asynchronous)
    engine.renew(shape(blocks=12, budget_tokens=256, host_blocks=24))
    driver = Driver(engine)
    together: list[tuple[int, int]] = []
    note = driver.scheduler._note_copies
    connector = driver.scheduler.connector

    def watch(copies: object) -> None:
        together.append((len(copies.out), len(copies.into)))  # type: ignore[attr-defined]
        note(copies)

    connector.on_copies = watch
    for name, prompt in prompts.items():
        driver.open(name, prompt, 4)
    driver.run()
    for half in (0, 1):
        rival = f"{next(_numbers)}-rival"
        driver.add(rival, tokens(30 + half, 300), 2)
        driver.run()
    for name in prompts:
        driver.finish(name)
    driver.run()
    assert [driver.outputs[name] for name in prompts] == expected
    assert any(out > 2 for out, _ in together)
    assert any(into > 2 for _, into in together)
    check_ended(engine)


@pytest.mark.engine
def test_swapped_bytes_come_back_bit_for_bit(
    real_engines: Callable[[bool], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared right after the copy, before anything is computed: the partial last block is written to in that step."""
    engine = real_engines(False)
    engine.renew(SHAPE)
    driver = Driver(engine)
    name = f"{next(_numbers)}"
    driver.open(name, PROMPT, 4)
    driver.run()
    before = engine.read_blocks([block.block_id for block in engine.scheduler.upstream.blocks(name)])
    restored: list[tuple[list[int], list[torch.Tensor]]] = []
    copy_in = engine.swap_backend.copy_in

    def watched(slots: list[int], block_ids: list[int]) -> None:
        copy_in(slots, block_ids)
        restored.append((block_ids, engine.read_blocks(block_ids)))

    monkeypatch.setattr(engine.swap_backend, "copy_in", watched)
    driver.add(f"{name}-rival", RIVAL, 2)
    while driver.scheduler.streams[name].preemptions == 0:
        driver.step()
    driver.append(name, tokens(7, 20))
    driver.run()
    [(block_ids, after)] = restored
    assert block_ids == [block.block_id for block in engine.scheduler.upstream.blocks(name)]
    assert len(block_ids) == 4
    for stored, brought_back in zip(before, after, strict=True):
        assert torch.equal(bits(stored), bits(brought_back))
    driver.finish(name)
    driver.run()
    check_ended(engine)
