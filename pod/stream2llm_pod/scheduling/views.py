"""The small read-only values that scheduling decisions are made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

RankKey: TypeAlias = tuple[float | int | str, ...]
"""Sorts smaller-first: the smallest key is the highest rank. Ends with the request id, so it is unique."""


@dataclass(frozen=True, slots=True)
class StreamView:
    """What a policy may know of one unfinished request.

    An ordinary request is a stream that was complete when it arrived: `open` is False and both times are equal.
    """

    req_id: str
    open: bool
    arrival_s: float
    last_chunk_s: float
    runnable_since_s: float
    """Since when it has had tokens to compute without a break; ageing counts from here."""
    prompt_tokens: int
    computed_tokens: int

    @property
    def remaining_prefill_tokens(self) -> int:
        return max(self.prompt_tokens - self.computed_tokens, 0)

    @property
    def prefilled_tokens(self) -> int:
        """Computed tokens of the prompt; constant while it decodes."""
        return min(self.prompt_tokens, self.computed_tokens)


@dataclass(slots=True)
class Candidate:
    """A request with tokens to compute, as the planner sees it. Treated as read-only."""

    req_id: str
    rank: RankKey
    complete: bool
    """Its prompt is whole: it will not wait for anybody but us."""
    holds_slot: bool
    """It occupies a run slot (it is in vLLM's running list)."""
    todo_tokens: int
    computed_tokens: int
    held_blocks: int
    restored_tokens: int = 0
    """Tokens that its admission brings back without computing them (prefix cache, host pool). They need blocks too."""
    shared_blocks: int = 0
    """Blocks among the restored ones that somebody else holds already, so they cost no free block."""
    fresh: bool = False
    """Some of its tokens were never computed: a new chunk, not only the repetition of what a preemption took."""
    overdue: bool = False
    """It has had work for longer than the ageing bound."""
    finishing: bool = False
    """Its prompt is whole and not computed to its end: somebody waits for just that."""
    on_host: bool = False
    """All that was ever computed of it lies in the host pool, and can be copied back whenever it is needed."""

    @property
    def decodes(self) -> bool:
        """It runs and wants the one token of a step that generates."""
        return self.holds_slot and self.todo_tokens == 1


@dataclass(slots=True)
class Victim:
    """A request whose KV blocks could be taken. Treated as read-only."""

    req_id: str
    rank: RankKey
    parked: bool
    """It has nothing to compute: it waits for its producer."""
    freeable_blocks: int
    """Blocks that return to the pool (those nobody shares)."""
    holds_slot: bool
    protected: bool = False
    """It was resumed a moment ago and is spared unless nothing else can run."""
    level: RankKey = ()
    """What its policy ranks it by; two of one level are told apart by arrival and name only."""
    price: float = 0.0
    """What its preemption costs, in whatever unit all victims share."""
    repeats: bool = False
    """Its prompt is not whole, and it computes again what a preemption took: nothing new is late if it stops."""

    @property
    def idle(self) -> bool:
        """It waits for its producer, whether or not it has everything computed."""
        return self.parked or self.repeats


@dataclass(frozen=True, slots=True)
class Limits:
    """What one step may spend."""

    budget_tokens: int
    free_blocks: int
    block_size: int
    free_slots: int
    parked_slots: int = 0
    """Run slots that parked streams hold."""
    lookahead_tokens: int = 0
    watermark_blocks: int = 0
    """Blocks that stay free when a request is admitted."""
    finishes_alone: bool = False
    """A step that computes a whole prompt computes nothing of open ones, so it is over sooner. Only for a policy that
    ranks whole prompts first."""
