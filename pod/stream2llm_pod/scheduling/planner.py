"""Phase 1: decide who runs with how many tokens and who gives up memory. Pure; changes nothing.

Inputs are iterated lazily and only as far as the step's budget reaches, because making a candidate can cost a
prefix-cache look-up.

Rules
- Candidates are served in rank order while tokens, blocks and slots last.
- A victim ranks strictly below the one it makes room for; a parked stream may also give way to any request whose
  prompt is whole, whatever their ranks. So a request that waits for nobody but us is never blocked by streams that wait
  for their producers, under every policy.
- A newcomer is admitted only if its whole known prompt fits beside what ranks above it. Otherwise it would take the
  room of one chunk, stall, be preempted and start over.
- If that rule leaves the step empty, the best candidate gets whatever fits: a step with work and memory is never empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge

from stream2llm_pod.scheduling.views import Candidate, Limits, Victim

MAX_PASSED_OVER = 16
"""How many candidates that do not fit are passed over before the step stops looking (once something is granted)."""


@dataclass(slots=True)
class Plan:
    """Tokens to compute per request, in rank order, and the requests to preempt first."""

    grants: dict[str, int] = field(default_factory=dict)
    victims: list[str] = field(default_factory=list)
    considered: int = 0


class _Memory:
    """Free blocks, and the victims' blocks that could be had, lowest rank first."""

    def __init__(self, free_blocks: int, victims: Callable[[], Iterable[Victim]]) -> None:
        self.free_blocks = free_blocks
        self._load = victims
        self._victims: list[Victim] | None = None
        self.gone: set[str] = set()

    def _eligible(self, candidate: Candidate, plan: Plan, spare_protected: bool) -> Iterator[Victim]:
        if self._victims is None:
            self._victims = list(self._load())
        for victim in self._victims:
            if victim.req_id in self.gone or victim.req_id in plan.grants or victim.req_id == candidate.req_id:
                continue
            if victim.protected and spare_protected:
                continue
            if victim.rank > candidate.rank or (victim.parked and candidate.complete):
                yield victim

    def available_blocks(self, candidate: Candidate, plan: Plan, spare_protected: bool) -> int:
        return self.free_blocks + sum(v.freeable_blocks for v in self._eligible(candidate, plan, spare_protected))

    def take(self, blocks: int, candidate: Candidate, plan: Plan, spare_protected: bool) -> int | None:
        """Take `blocks`, preempting as needed; returns the slots that came free with the victims, None if short."""
        if blocks <= self.free_blocks:
            self.free_blocks -= blocks
            return 0
        chosen, gained_blocks = [], 0
        for victim in self._eligible(candidate, plan, spare_protected):
            chosen.append(victim)
            gained_blocks += victim.freeable_blocks
            if blocks <= self.free_blocks + gained_blocks:
                break
        else:
            return None
        return self._evict(chosen, plan, gained_blocks - blocks)

    def take_slot(self, candidate: Candidate, plan: Plan) -> bool:
        """Free one run slot by preempting a parked stream."""
        for victim in self._eligible(candidate, plan, False):
            if victim.parked and victim.holds_slot:
                self._evict([victim], plan, victim.freeable_blocks)
                return True
        return False

    def _evict(self, chosen: list[Victim], plan: Plan, balance_blocks: int) -> int:
        self.free_blocks += balance_blocks
        for victim in chosen:
            self.gone.add(victim.req_id)
            plan.victims.append(victim.req_id)
        return sum(v.holds_slot for v in chosen)


def _blocks_for(candidate: Candidate, tokens: int, limits: Limits) -> int:
    end = candidate.computed_tokens + candidate.restored_tokens + tokens + limits.lookahead_tokens
    return max(-(-end // limits.block_size) - candidate.held_blocks - candidate.shared_blocks, 0)


def plan_step(
    holders: Iterable[Candidate],
    newcomers: Iterable[Candidate],
    victims: Callable[[], Iterable[Victim]],
    limits: Limits,
    *,
    spare_protected: bool = True,
) -> Plan:
    """Plan one step.

    holders: candidates that occupy a run slot, in rank order; newcomers: those that need one, in rank order;
    victims: all that hold blocks or slots, lowest rank first, asked for only when memory or slots are short.
    """
    plan = Plan()
    memory = _Memory(limits.free_blocks, victims)
    budget_tokens, slots, passed_over = limits.budget_tokens, limits.free_slots, 0
    first_left_out: Candidate | None = None
    for candidate in merge(holders, newcomers, key=lambda c: c.rank):
        if budget_tokens <= 0 or (plan.grants and passed_over >= MAX_PASSED_OVER):
            break
        if candidate.req_id in memory.gone:
            continue
        plan.considered += 1
        todo_tokens = candidate.todo_tokens - candidate.restored_tokens
        if todo_tokens <= 0:
            continue
        take_tokens = min(todo_tokens, budget_tokens)
        if not candidate.holds_slot:
            whole_blocks = _blocks_for(candidate, todo_tokens, limits)
            if whole_blocks > memory.free_blocks and (
                whole_blocks > memory.available_blocks(candidate, plan, spare_protected)
            ):
                first_left_out = first_left_out or candidate
                passed_over += 1
                continue
            if slots <= 0:
                if not memory.take_slot(candidate, plan):
                    passed_over += 1
                    continue
                slots += 1
        freed_slots = memory.take(_blocks_for(candidate, take_tokens, limits), candidate, plan, spare_protected)
        if freed_slots is None:
            # A request that already runs goes on with what is there; a stalled one would only hold memory.
            take_tokens = _fitting_tokens(candidate, take_tokens, memory.free_blocks, limits)
            if take_tokens <= 0:
                passed_over += 1
                continue
            memory.free_blocks -= _blocks_for(candidate, take_tokens, limits)
            freed_slots = 0
        slots += freed_slots - (not candidate.holds_slot)
        budget_tokens -= take_tokens
        plan.grants[candidate.req_id] = take_tokens
    if plan.grants:
        return plan
    if spare_protected and memory.gone == set() and first_left_out is not None:
        return _last_resort(first_left_out, memory, slots, limits)
    return plan


def _fitting_tokens(candidate: Candidate, tokens: int, free_blocks: int, limits: Limits) -> int:
    room_blocks = candidate.held_blocks + candidate.shared_blocks + free_blocks
    room_tokens = room_blocks * limits.block_size - limits.lookahead_tokens
    return min(tokens, room_tokens - candidate.computed_tokens - candidate.restored_tokens)


def _last_resort(candidate: Candidate, memory: _Memory, slots: int, limits: Limits) -> Plan:
    """The step is empty: spare nobody, and let the best candidate have what it can get."""
    plan = Plan(considered=1)
    if slots <= 0 and not memory.take_slot(candidate, plan):
        return plan
    tokens = min(candidate.todo_tokens - candidate.restored_tokens, limits.budget_tokens)
    if memory.take(_blocks_for(candidate, tokens, limits), candidate, plan, False) is None:
        tokens = _fitting_tokens(candidate, tokens, memory.free_blocks, limits)
    if tokens > 0:
        plan.grants[candidate.req_id] = tokens
    return plan
