"""Scheduling policies: each ranks the unfinished streams by a key, smaller first.

Sources: `fcfs`, `lcas` and `mcps` follow the Stream2LLM paper (MLSys 2026); `lcas-oldest` is the order that its
published artifact really sorts by. `srpf` is ours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from stream2llm_pod.scheduling.views import RankKey, StreamView

DEFAULT_MAX_WAIT_S = 60.0
LONGEST_TOKENS = 131_072


class Policy(ABC):
    """Orders streams. One instance per scheduler; it keeps no state between calls."""

    name: str
    min_residency_s: float = 0.0
    """How long a stream that was just admitted is spared from preemption."""

    finishes_alone: bool = False
    """Whether a step that computes a whole prompt leaves out open ones, so that it is over sooner. At most every other
    step does. Needs whole prompts to be ranked first."""

    tie_breakers: int = 2
    """How many parts at the end of a key only tell equals apart: arrival and name."""

    @abstractmethod
    def key(self, view: StreamView, now_s: float) -> RankKey:
        """The stream's rank key at `now_s` (seconds on the scheduler's clock)."""

    def level(self, key: RankKey) -> RankKey:
        """What the policy really ranks by. Among equals, the cheapest victim goes first."""
        return key[: len(key) - self.tie_breakers]

    def changes_at_s(self, view: StreamView, now_s: float) -> float | None:
        """When the key changes by the mere passing of time; None if it never does."""
        return None


class Default(Policy):
    """vLLM's own order: running requests first, then the queue. The scheduler lets vLLM decide and only relieves
    deadlocks, so this key is asked for only when a victim is needed."""

    name = "default"
    tie_breakers = 1

    def key(self, view: StreamView, now_s: float) -> RankKey:
        return (view.arrival_s, view.req_id)


class Fcfs(Policy):
    """First come, first served; streams whose prompt is whole go before those still arriving."""

    name = "fcfs"
    tie_breakers = 1

    def key(self, view: StreamView, now_s: float) -> RankKey:
        return (int(view.open), view.arrival_s, view.req_id)


class Lcas(Policy):
    """Last chunk arrival: the stream whose newest chunk is the most recent goes first (the paper's text).

    It needs a minimum residency: with recompute alone, each new chunk elsewhere would evict what was just restored.
    """

    name = "lcas"
    min_residency_s = 0.5

    def key(self, view: StreamView, now_s: float) -> RankKey:
        return (-view.last_chunk_s, int(view.open), view.arrival_s, view.req_id)


class LcasOldest(Policy):
    """Last chunk arrival as the paper's artifact sorts it: whole prompts first, then the oldest last chunk."""

    name = "lcas-oldest"

    def key(self, view: StreamView, now_s: float) -> RankKey:
        return (int(view.open), view.last_chunk_s, view.arrival_s, view.req_id)


class Mcps(Policy):
    """Most computed prefix: the stream with the most prefilled tokens goes first."""

    name = "mcps"

    def key(self, view: StreamView, now_s: float) -> RankKey:
        return (-view.prefilled_tokens, view.arrival_s, view.req_id)


class Srpf(Policy):
    """Shortest remaining prefill first, with ageing: a stream that has had work for `max_wait_s` goes before all
    younger ones, oldest first, so nobody waits for ever. Whole prompts go before open ones of the same length class,
    because only they can produce a token."""

    name = "srpf"

    def __init__(self, max_wait_s: float = DEFAULT_MAX_WAIT_S) -> None:
        if not max_wait_s > 0:
            raise ValueError(f"max_wait_s must be above 0, not {max_wait_s}")
        self.max_wait_s = max_wait_s

    def key(self, view: StreamView, now_s: float) -> RankKey:
        if now_s - view.runnable_since_s >= self.max_wait_s:
            return (0, 0, view.runnable_since_s, view.req_id)
        return (1 + int(view.open), view.remaining_prefill_tokens, view.arrival_s, view.req_id)

    def changes_at_s(self, view: StreamView, now_s: float) -> float | None:
        due_s = view.runnable_since_s + self.max_wait_s
        return due_s if due_s > now_s else None


class Auto(Policy):
    """Shortest remaining prefill first while little waits, by and by first come, first served as waits grow.

    A whole prompt's remaining tokens count less by `credit_tokens` for each second since it became whole. All waiting
    prompts gain alike, so ranks need no renewal, and only those that became whole within (its remaining tokens ÷
    credit) seconds after a prompt can ever go before it: a bound on how much newer work anybody waits for. Open prompts
    come after whole ones, in the order of their arrival: the youngest gives way first, which has lost least and has the
    longest time left to get it back before its finish. A step that computes a whole prompt is not filled up with open
    ones: half of all whole prompts need less than a step, and would wait for the rest of it.
    """

    name = "auto"
    finishes_alone = True
    credit_tokens_per_s = 3_000.0
    """A fraction of what a GPU prefills a second, so that order is mostly by length."""

    def __init__(self, max_wait_s: float = DEFAULT_MAX_WAIT_S) -> None:
        """max_wait_s: behind nobody who became whole so much later does a prompt of `LONGEST_TOKENS` wait."""
        if not max_wait_s > 0:
            raise ValueError(f"max_wait_s must be above 0, not {max_wait_s}")
        self._credit = max(self.credit_tokens_per_s, LONGEST_TOKENS / max_wait_s)

    def key(self, view: StreamView, now_s: float) -> RankKey:
        if view.open:
            return (1, view.arrival_s, view.arrival_s, view.req_id)
        return (0, view.remaining_prefill_tokens + self._credit * view.last_chunk_s, view.arrival_s, view.req_id)


POLICIES: dict[str, Callable[[float], Policy]] = {
    Default.name: lambda _: Default(),
    Fcfs.name: lambda _: Fcfs(),
    Lcas.name: lambda _: Lcas(),
    LcasOldest.name: lambda _: LcasOldest(),
    Mcps.name: lambda _: Mcps(),
    Srpf.name: Srpf,
    Auto.name: Auto,
}
"""Policy name → constructor, given the ageing bound in seconds."""


def make_policy(name: str, max_wait_s: float = DEFAULT_MAX_WAIT_S) -> Policy:
    """The policy called `name`; ValueError lists the known names otherwise."""
    try:
        constructor = POLICIES[name]
    except KeyError:
        raise ValueError(f"policy {name!r} is not known; choose one of {', '.join(POLICIES)}") from None
    return constructor(max_wait_s)
