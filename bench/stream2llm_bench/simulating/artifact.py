"""The schedulers of the paper's artifact as they are published, memory included, in virtual time and without an engine.

What is modelled is what the artifact does, not what the paper says: phase 1 counts all memory as free, whoever is left
out gives way from the lowest rank up, and the kind of preemption is chosen by how many tokens the one that takes
computes in this step, not by what the victim loses. The default is the artifact's version of vLLM's own loop: running
requests in the order of their admission, the last one admitted gives way, even to itself, and the head of the queue
blocks all behind it. Idle streams keep their places, and their memory, among the running ones.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stream2llm_bench.simulating.limits import check_memory
from stream2llm_bench.simulating.outcome import Outcome
from stream2llm_bench.workloads.streams import Message, Piece, Stream, common_prefix, timeline

if TYPE_CHECKING:
    from stream2llm_bench.simulating.engine import Setting

BLOCK_SIZE = 16
AHEAD_BLOCKS = 4
"""Allocated beyond what is needed, where they are free."""
SLOTS = 1024


@dataclass(slots=True, eq=False)
class _Request:
    """One stream on its way."""

    stream: Stream
    arrival_s: float
    last_chunk_s: float
    pieces: tuple[Piece, ...] = ()
    open: bool = True
    known_tokens: int = 0
    computed_tokens: int = 0
    blocks: int = 0
    """On the GPU."""
    on_host: bool = False
    runs: bool = False

    @property
    def todo_tokens(self) -> int:
        return self.known_tokens - self.computed_tokens


_Key = Callable[[_Request], tuple[float, ...]]
LAST = float("inf")


def _fcfs(request: _Request) -> tuple[float, ...]:
    return (request.open, LAST if request.open and not request.todo_tokens else request.arrival_s)


def _lcas(request: _Request) -> tuple[float, ...]:
    return (request.open, LAST if request.open and not request.todo_tokens else request.last_chunk_s)


def _mcps(request: _Request) -> tuple[float, ...]:
    if not request.todo_tokens:
        return (LAST, LAST)
    return (-request.computed_tokens, request.arrival_s)


ARTIFACT_DEFAULT = "artifact-default"
KEYS: Mapping[str, _Key] = {"artifact-fcfs": _fcfs, "artifact-lcas": _lcas, "artifact-mcps": _mcps}
"""Smaller first; the sort is stable, waiting requests before running ones."""
ARTIFACT = (ARTIFACT_DEFAULT, *KEYS)
"""In place of a policy: the order together with the way memory is found."""


def order_of(policy: str) -> str:
    """Which of our policies has the order of a scheduler of the artifact; any other policy is its own."""
    return "lcas-oldest" if policy == "artifact-lcas" else policy.removeprefix("artifact-")


def run(streams: Sequence[Stream], setting: Setting, answered: Callable[[], None] = lambda: None) -> Outcome:
    """What `SimulatedEngine.run` returns, for a setting whose policy is one of `ARTIFACT`; host memory always suffices.

    `answered` is called for each stream that has its first token. Raises ValueError for several tenants, another policy
    or a prompt that the KV memory cannot hold with its reserve, RuntimeError if streams are left for which nothing can
    ever happen.
    """
    if setting.policy not in ARTIFACT:
        raise ValueError(f"{setting.policy!r} is no scheduler of the artifact; those are {', '.join(ARTIFACT)}")
    if len({stream.tenant for stream in streams}) > 1:
        raise ValueError("the artifact's schedulers know no tenants; choose another policy for several")
    check_memory(streams, setting, BLOCK_SIZE, spare_blocks=AHEAD_BLOCKS)
    started = time.perf_counter()
    outcome = _Run(streams, setting, answered).to_end()
    outcome.wall_s = time.perf_counter() - started
    return outcome


class _Run:
    def __init__(self, streams: Sequence[Stream], setting: Setting, answered: Callable[[], None]) -> None:
        self._answered = answered
        self._streams = streams if setting.streaming else [stream.waiting() for stream in streams]
        self._key = KEYS.get(setting.policy)
        self._preemption, self._budget_tokens = setting.preemption, setting.budget_tokens
        self._costs = setting.hardware.costs()
        self._all_blocks = self._free_blocks = setting.memory_tokens // BLOCK_SIZE
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []
        self._requests: dict[str, _Request] = {}
        self._first_s: dict[str, float] = {}
        self._copied_ms = 0.0
        self._outcome = Outcome(preemptions={"recompute": 0, "swap": 0})

    def to_end(self) -> Outcome:
        events = timeline(self._streams)
        now_s, following = 0.0, 0
        while following < len(events) or self._requests:
            while following < len(events) and events[following][0] <= now_s:
                when_s, _, place, stream = events[following]
                self._take(stream, place, when_s, now_s)
                following += 1
            preempted = sum(self._outcome.preemptions.values())
            took_s = self._step(now_s)
            if took_s is not None:
                now_s += took_s
            elif sum(self._outcome.preemptions.values()) > preempted:
                # Whoever just gave way may be admitted again by the next step, which comes at once.
                continue
            elif following < len(events):
                now_s = max(now_s, events[following][0])
            elif self._requests:
                raise RuntimeError(f"{len(self._requests)} streams are left, and nothing can happen any more")
        return self._outcome.answered(self._streams, self._first_s)

    def _take(self, stream: Stream, place: int, when_s: float, now_s: float) -> None:
        message, last = stream.messages[place], place == len(stream.messages) - 1
        request = self._requests.get(stream.name)
        if request is None:
            request = self._requests[stream.name] = _Request(stream, when_s, when_s)
            self._waiting.append(request)
        else:
            request.last_chunk_s = now_s
        self._change(request, message)
        request.open = not last

    def _change(self, request: _Request, message: Message) -> None:
        if not message.replaces:
            request.pieces = (*request.pieces, *message.pieces)
            request.known_tokens += message.tokens
            return
        shared_tokens = common_prefix(request.pieces, message.pieces)
        request.pieces, request.known_tokens = message.pieces, message.tokens
        # The last token is computed again, or there would be nothing to sample from.
        kept_tokens = min(request.computed_tokens, shared_tokens, request.known_tokens - 1)
        if shared_tokens < request.computed_tokens:
            self._outcome.invalidated_tokens += request.computed_tokens - kept_tokens
            if request.blocks:
                self._hold(request, min(request.blocks, _blocks(kept_tokens)))
        request.computed_tokens = kept_tokens

    def _hold(self, request: _Request, blocks: int) -> None:
        self._free_blocks += request.blocks - blocks
        request.blocks = blocks

    # ---------------------------------------------------------------- one step
    def _step(self, now_s: float) -> float | None:
        """How long it takes, in seconds; None if there is nothing that can be computed."""
        self._copied_ms = 0.0
        granted = self._upstream_loop() if self._key is None else self._two_phases(self._key)
        if not granted:
            return None
        spans = [(request.computed_tokens, request.computed_tokens + tokens) for request, tokens in granted]
        took_s = (self._costs.step_ms(spans) + self._copied_ms) / 1e3
        self._outcome.steps += 1
        for request, tokens in granted:
            request.computed_tokens += tokens
            if not request.open and not request.todo_tokens:
                self._first_s[request.stream.name] = now_s + took_s
                self._answered()
                self._hold(request, 0)
                self._running.remove(request)
                del self._requests[request.stream.name]
        return took_s

    def _two_phases(self, key: _Key) -> list[tuple[_Request, int]]:
        left_tokens, left_blocks = self._budget_tokens, self._all_blocks
        grants: dict[int, int] = {}
        left_out: list[_Request] = []
        newcomers: list[_Request] = []
        for request in sorted([*self._waiting, *self._running], key=key):
            tokens = min(request.todo_tokens, left_tokens)
            needed = _blocks(tokens + request.computed_tokens) + AHEAD_BLOCKS
            if tokens <= 0 or needed > left_blocks:
                left_out.append(request)
                continue
            grants[id(request)] = tokens
            left_tokens -= tokens
            left_blocks -= needed
            if not request.runs:
                newcomers.append(request)
        granted = []

        def give_way() -> _Request | None:
            while left_out:
                victim = left_out.pop()
                if victim.runs:
                    return victim
            return None

        for request in list(self._running):
            tokens = grants.get(id(request), 0)
            if tokens and self._obtain(request, tokens, give_way):
                granted.append((request, tokens))
        for request in newcomers:
            if len(self._running) >= SLOTS:
                break
            tokens = grants[id(request)]
            if self._obtain(request, tokens, give_way):
                self._waiting.remove(request)
                self._admit(request)
                granted.append((request, tokens))
        return granted

    def _upstream_loop(self) -> list[tuple[_Request, int]]:
        left_tokens = self._budget_tokens
        granted: list[tuple[_Request, int]] = []
        preempted = 0

        def last_admitted() -> _Request:
            nonlocal preempted
            preempted += 1
            return self._running[-1]

        place = 0
        while place < len(self._running) and left_tokens > 0:
            request = self._running[place]
            tokens = min(request.todo_tokens, left_tokens)
            if tokens > 0:
                if not self._obtain(request, tokens, last_admitted):
                    break
                granted.append((request, tokens))
                left_tokens -= tokens
            place += 1
        for request in list(self._waiting):
            if preempted or left_tokens <= 0 or len(self._running) >= SLOTS:
                break
            tokens = min(request.todo_tokens, left_tokens)
            if tokens <= 0:
                # An idle stream whose memory is on the host.
                continue
            if not self._obtain(request, tokens, lambda: None):
                break
            self._waiting.remove(request)
            self._admit(request)
            granted.append((request, tokens))
            left_tokens -= tokens
        return granted

    def _obtain(self, request: _Request, tokens: int, victims: Callable[[], _Request | None]) -> bool:
        """Allocate for `tokens` more; False if nobody is left to give way, or the request itself had to."""
        more = _blocks(request.computed_tokens + tokens) - request.blocks
        while more > self._free_blocks:
            victim = victims()
            if victim is None:
                return False
            self._preempt(victim, tokens)
            if victim is request:
                return False
        if more > 0:
            self._hold(request, request.blocks + min(more + AHEAD_BLOCKS, self._free_blocks))
        return True

    def _admit(self, request: _Request) -> None:
        request.runs = True
        self._running.append(request)
        if request.on_host:
            request.on_host = False
            self._copied_ms += self._costs.swap_in.ms(request.computed_tokens)

    def _preempt(self, victim: _Request, taker_tokens: int) -> None:
        swaps = self._preemption == "swap" or (
            self._preemption == "cost" and self._costs.recompute_ms(taker_tokens) >= self._costs.swap_ms(taker_tokens)
        )
        if swaps and victim.computed_tokens > 0:
            self._outcome.preemptions["swap"] += 1
            self._copied_ms += self._costs.swap_out.ms(victim.computed_tokens)
            victim.on_host = True
        else:
            self._outcome.preemptions["recompute"] += 1
            self._outcome.recomputed_tokens += victim.computed_tokens
            victim.computed_tokens = 0
        self._hold(victim, 0)
        victim.runs = False
        self._running.remove(victim)
        self._waiting.appendleft(victim)


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)
