"""Whole histories for hypothesis: streams, their chunks, when these arrive, and the engine they meet."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from driving import Driver, Stalled, tokens
from engines import BLOCK_SIZE, Engine, Shape
from hypothesis import strategies as st
from invariants import check_ended, check_scheduler

from stream2llm_pod.engine.tenancy import TenantShare

POLICIES = ("default", "fcfs", "lcas", "lcas-oldest", "mcps", "srpf", "auto")
MAX_OUTPUT_TOKENS = 4
HOST_BLOCKS = (0, 100, 1, 5)
SHARES = (None, TenantShare("a", 1.0), TenantShare("b", 4.0), TenantShare("c", 0.25))
_numbers = itertools.count()


class Kind(StrEnum):
    """What arrives for a stream after its opening."""

    APPEND = "append"
    UPDATE = "update"
    FINISH = "finish"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Arrival:
    """`length` tokens of sequence `seed`, `wait_steps` engine steps after the stream's arrival before.

    An update keeps the first `keep_tokens` of what is known (or all, if they are fewer).
    """

    kind: Kind
    wait_steps: int = 0
    length: int = 0
    seed: int = 0
    keep_tokens: int = 0
    last: bool = False


@dataclass(frozen=True, slots=True)
class StreamHistory:
    """One stream from its opening to its end; an ordinary request if there are no arrivals."""

    start_step: int
    length: int
    seed: int
    output_tokens: int
    arrivals: tuple[Arrival, ...]
    share: TenantShare | None = None
    """Whose it is; nobody says so if None."""

    def prompts(self) -> list[list[int]]:
        """The prompt after the opening and after each arrival."""
        prompts = [tokens(self.seed, self.length)]
        for arrival in self.arrivals:
            known, chunk = prompts[-1], tokens(arrival.seed, arrival.length)
            if arrival.kind is Kind.APPEND:
                prompts.append(known + chunk)
            elif arrival.kind is Kind.UPDATE:
                # A prompt has one token at least.
                prompts.append((known[: arrival.keep_tokens] + chunk) or tokens(arrival.seed, 1))
            else:
                prompts.append(known)
        return prompts

    @property
    def aborted(self) -> bool:
        return any(arrival.kind is Kind.ABORT for arrival in self.arrivals)


@dataclass(frozen=True, slots=True)
class History:
    """Streams, and the scheduler they meet. `spare_blocks` are beyond those that the longest stream needs."""

    streams: tuple[StreamHistory, ...]
    asynchronous: bool
    prefix_caching: bool
    policy: str
    spare_blocks: int
    budget_tokens: int
    slots: int
    max_wait_s: float
    preemption: str = "recompute"
    host_blocks: int = 0
    swap_is_cheap: bool = True
    second_runner: bool = False

    def shape(self) -> Shape:
        longest = max(len(p) + stream.output_tokens for stream in self.streams for p in stream.prompts())
        return Shape(
            blocks=-(-longest // BLOCK_SIZE) + self.spare_blocks,
            budget_tokens=self.budget_tokens,
            slots=self.slots,
            policy=self.policy,
            max_wait_s=self.max_wait_s,
            prefix_caching=self.prefix_caching,
            preemption=self.preemption,
            host_blocks=self.host_blocks,
            swap_is_cheap=self.swap_is_cheap,
            second_runner=self.second_runner,
        )


# ---------------------------------------------------------------- drawing
_lengths = st.one_of(st.integers(1, 8), st.sampled_from([31, 32, 33, 64, 65, 96]), st.integers(1, 130))
_seeds = st.integers(0, 3)
_waits = st.one_of(st.just(0), st.integers(0, 12))
_appends = st.builds(Arrival, st.just(Kind.APPEND), _waits, _lengths, _seeds)
_updates = st.builds(
    Arrival,
    st.just(Kind.UPDATE),
    _waits,
    st.one_of(st.just(0), _lengths),
    _seeds,
    st.one_of(st.sampled_from([0, 31, 32, 33, 64, 1000]), st.integers(0, 260)),
)


@st.composite
def _streams(draw: Any) -> StreamHistory:
    length, seed = draw(_lengths), draw(_seeds)
    arrivals: list[Arrival] = []
    if draw(st.integers(0, 4)):
        arrivals = draw(st.lists(st.one_of(_appends, _updates), max_size=4))
        ending = draw(st.sampled_from(["finish", "finish", "last", "abort"]))
        if ending == "last" and arrivals:
            *arrivals, end = arrivals
            arrivals.append(Arrival(end.kind, end.wait_steps, end.length, end.seed, end.keep_tokens, last=True))
        else:
            arrivals.append(Arrival(Kind.ABORT if ending == "abort" else Kind.FINISH, draw(_waits)))
    output_tokens = draw(st.integers(1, MAX_OUTPUT_TOKENS))
    return StreamHistory(
        draw(st.integers(0, 10)), length, seed, output_tokens, tuple(arrivals), draw(st.sampled_from(SHARES))
    )


def histories(*, most_streams: int = 6, second_runner: bool = False) -> st.SearchStrategy[History]:
    """Small ones first: hypothesis shrinks towards one short stream of nobody in particular on a synchronous engine
    with little memory."""
    return st.builds(
        History,
        st.lists(_streams(), min_size=1, max_size=most_streams).map(tuple),
        st.booleans(),
        st.booleans(),
        st.sampled_from(POLICIES),
        st.one_of(st.integers(0, 3), st.integers(0, 20)),
        st.sampled_from([256, 64, 33, 16]),
        st.sampled_from([8, 2, 1, 16]),
        st.sampled_from([60.0, 0.05]),
        st.sampled_from(["recompute", "swap", "cost"]),
        st.sampled_from(HOST_BLOCKS),
        st.booleans(),
        st.booleans() if second_runner else st.just(False),
    )


# ---------------------------------------------------------------- running
def run_history(engine: Engine, history: History) -> dict[int, list[int]]:
    """Run it to its end on a new scheduler, checking each step; returns the output of each stream by its index."""
    engine.renew(history.shape())
    driver = Driver(engine)
    names = [f"{next(_numbers)}.{index}" for index in range(len(history.streams))]
    due = [(step, order, act) for order, (step, act) in enumerate(_timeline(driver, names, history))]
    due.sort(key=lambda entry: entry[:2])
    position = step = idle = 0
    while position < len(due) or driver.busy:
        while position < len(due) and due[position][0] <= step:
            due[position][2]()
            check_scheduler(engine.scheduler)
            position += 1
        if not driver.busy:
            if position < len(due):
                # The engine's loop sleeps until something arrives.
                step = max(step, due[position][0])
            continue
        idle = 0 if driver.step() else idle + 1
        step += 1
        if idle > 50 and position == len(due):
            raise Stalled(driver.describe())
    check_ended(engine)
    outputs = {}
    for index, (name, stream) in enumerate(zip(names, history.streams, strict=True)):
        if stream.aborted:
            assert not driver.outputs[name]
        else:
            assert driver.finished.get(name) == "length", f"{name} ended as {driver.finished.get(name)}"
            outputs[index] = driver.outputs[name]
    return outputs


def _timeline(driver: Driver, names: list[str], history: History) -> list[tuple[int, Callable[[], None]]]:
    """(step, what to do), each stream's in order."""
    timeline: list[tuple[int, Callable[[], None]]] = []
    for name, stream in zip(names, history.streams, strict=True):
        prompts = stream.prompts()
        step = stream.start_step
        first = driver.open if stream.arrivals else driver.add
        timeline.append((step, _call(first, name, prompts[0], stream.output_tokens, share=stream.share)))
        for arrival, prompt in zip(stream.arrivals, prompts[1:], strict=True):
            step += arrival.wait_steps
            timeline.append((step, _arrive(driver, name, arrival, prompt)))
    return timeline


def _call(act: Callable[..., None], *args: Any, **fields: Any) -> Callable[[], None]:
    return lambda: act(*args, **fields)


def _arrive(driver: Driver, name: str, arrival: Arrival, prompt: list[int]) -> Callable[[], None]:
    match arrival.kind:
        case Kind.APPEND:
            return lambda: driver.append(name, tokens(arrival.seed, arrival.length), last=arrival.last)
        case Kind.UPDATE:
            return lambda: driver.update(name, prompt, last=arrival.last)
        case Kind.FINISH:
            return lambda: driver.finish(name)
        case Kind.ABORT:
            return lambda: driver.abort(name)
