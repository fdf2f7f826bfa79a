"""The same runs without an engine, where memory suffices: fifty times as fast.

With room for everybody a plan is simple: the pod's policies rank, and tokens are granted in that order while the step's
budget lasts. That is all this does, with the pod's own `Policy` classes and cost curves; a test compares its times with
the real scheduler's under every policy. What it cannot serve (short memory, several tenants, vLLM's own order or
sessions) it refuses.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stream2llm_bench.simulating.outcome import Outcome
from stream2llm_bench.workloads.streams import Message, Piece, Stream, common_prefix, timeline

if TYPE_CHECKING:
    from stream2llm_bench.simulating.engine import Setting
    from stream2llm_pod.scheduling.policies import Policy
    from stream2llm_pod.scheduling.views import RankKey

BLOCK_SIZE = 32
SLOTS = 1024
ROOM = 0.95
"""Of the memory: a little is always kept free at an admission."""


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
    runnable_since_s: float = 0.0
    key: RankKey | None = None
    """Its place in the ranking; None while it has nothing to compute."""
    most_tokens: int = 0
    """The longest that its prompt has been: what it may hold."""


def run(streams: Sequence[Stream], setting: Setting) -> Outcome | None:
    """What `SimulatedEngine.run` returns, to a nanosecond; None for a run that needs the engine."""
    from stream2llm_bench.simulating.engine import STOCK
    from stream2llm_pod.scheduling.policies import DEFAULT_MAX_WAIT_S, Default, make_policy

    if setting.policy == STOCK or len({stream.tenant for stream in streams}) > 1:
        return None
    policy = make_policy(setting.policy, DEFAULT_MAX_WAIT_S if setting.max_wait_s is None else setting.max_wait_s)
    if isinstance(policy, Default) and setting.streaming:
        return None
    return _Run(streams, setting, policy).to_end()


class _Run:
    def __init__(self, streams: Sequence[Stream], setting: Setting, policy: Policy) -> None:
        self._policy, self._streaming, self._budget_tokens = policy, setting.streaming, setting.budget_tokens
        self._costs = setting.hardware.costs()
        self._room_blocks = int(ROOM * setting.memory_tokens) // BLOCK_SIZE
        self._streams = streams if setting.streaming else [stream.waiting() for stream in streams]
        self._ranked: list[RankKey] = []
        self._requests: dict[str, _Request] = {}
        self._held_blocks = 0
        self._first_s: dict[str, float] = {}
        self._held_back = False
        self._due_s = float("inf")
        self._outcome = Outcome(preemptions={"recompute": 0, "swap": 0})

    def to_end(self) -> Outcome | None:
        """None as soon as memory could be short."""
        events = timeline(self._streams)
        now_s, following = 0.0, 0
        while following < len(events) or self._ranked:
            while following < len(events) and events[following][0] <= now_s:
                when_s, _, place, stream = events[following]
                self._take(stream, place, when_s, now_s)
                following += 1
            if self._held_blocks > self._room_blocks or len(self._requests) > SLOTS:
                return None
            if self._ranked:
                now_s = self._step(now_s)
            elif following < len(events):
                now_s = events[following][0]
        return self._outcome.answered(self._streams, self._first_s)

    def _take(self, stream: Stream, place: int, when_s: float, now_s: float) -> None:
        """One message, in effect from `now_s` on."""
        message, last = stream.messages[place], place == len(stream.messages) - 1
        request = self._requests.get(stream.name)
        if request is None:
            # vLLM knows of a whole prompt when it was sent, our streams when it was taken.
            arrival_s = now_s if self._streaming else when_s
            request = self._requests[stream.name] = _Request(stream, arrival_s, arrival_s)
        else:
            request.last_chunk_s = now_s
        before_tokens = request.known_tokens
        shared_tokens = self._change(request, message)
        request.open = not last
        if before_tokens and not (request.open and request.known_tokens == before_tokens == shared_tokens):
            kept_tokens = min(shared_tokens, request.computed_tokens, request.known_tokens - 1)
            if shared_tokens < request.computed_tokens:
                self._outcome.invalidated_tokens += request.computed_tokens - kept_tokens
            request.computed_tokens = kept_tokens
        grown = _blocks(max(request.known_tokens, request.most_tokens)) - _blocks(request.most_tokens)
        self._held_blocks += grown
        request.most_tokens = max(request.most_tokens, request.known_tokens)
        self._rank(request, now_s)

    @staticmethod
    def _change(request: _Request, message: Message) -> int:
        """Tokens that the prompt shares with what it was."""
        if not message.replaces:
            shared_tokens = request.known_tokens
            request.pieces = (*request.pieces, *message.pieces)
            request.known_tokens += message.tokens
        else:
            shared_tokens = common_prefix(request.pieces, message.pieces)
            request.pieces, request.known_tokens = message.pieces, message.tokens
        return shared_tokens

    def _rank(self, request: _Request, now_s: float) -> None:
        from stream2llm_pod.scheduling.views import StreamView

        if request.key is not None:
            del self._ranked[bisect_left(self._ranked, request.key)]
        elif request.computed_tokens < request.known_tokens:
            request.runnable_since_s = now_s
        request.key = None
        if request.computed_tokens >= request.known_tokens:
            return
        view = StreamView(
            request.stream.name,
            request.open,
            request.arrival_s,
            request.last_chunk_s,
            request.runnable_since_s,
            request.known_tokens,
            request.computed_tokens,
        )
        request.key = self._policy.key(view, now_s)
        insort(self._ranked, request.key)
        due_s = self._policy.changes_at_s(view, now_s)
        if due_s is not None:
            self._due_s = min(self._due_s, due_s)

    def _step(self, now_s: float) -> float:
        """Returns when it has ended."""
        if self._due_s <= now_s:
            self._due_s = float("inf")
            for key in list(self._ranked):
                self._rank(self._requests[str(key[-1])], now_s)
        left_tokens = self._budget_tokens
        may_hold_back = self._policy.finishes_alone and not self._held_back
        self._held_back = finishes = False
        granted: list[tuple[_Request, int]] = []
        for key in self._ranked:
            request = self._requests[str(key[-1])]
            if finishes and may_hold_back and request.open:
                self._held_back = True
                break
            tokens = min(left_tokens, request.known_tokens - request.computed_tokens)
            granted.append((request, tokens))
            finishes = finishes or not request.open
            left_tokens -= tokens
            if left_tokens <= 0:
                break
        spans = [(request.computed_tokens, request.computed_tokens + tokens) for request, tokens in granted]
        now_s += self._costs.step_ms(spans) / 1e3
        self._outcome.steps += 1
        for request, tokens in granted:
            request.computed_tokens += tokens
            self._rank(request, now_s)
            if request.key is None and not request.open:
                self._first_s[request.stream.name] = now_s
                self._held_blocks -= _blocks(request.most_tokens)
                del self._requests[request.stream.name]
        return now_s


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)
