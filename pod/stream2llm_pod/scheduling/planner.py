"""Phase 1: decide who runs with how many tokens and who gives up memory. Pure; changes nothing.

Inputs are iterated lazily and only as far as the step's budget and slots reach, because making a candidate can cost a
prefix-cache look-up and making a victim means counting its blocks.

Rules
- Candidates are served in rank order while tokens, blocks and slots last.
- A victim ranks strictly below the one it makes room for; an idle stream (parked, or repeating what a preemption took)
  may also give way to any request whose prompt is whole, whatever their ranks. So a request that waits for nobody but
  us is never blocked by streams that wait for their producers, under every policy.
- The lowest rank gives way first; among equals the one that costs least per block freed. Whoever a later victim makes
  superfluous is spared.
- A newcomer is admitted only if its whole known prompt fits beside what ranks above it. Otherwise it would take the
  room of one chunk, stall, be preempted and start over.
- What a preemption took comes back ahead of its stream's next chunk only if there is free memory: nobody is pushed out
  for tokens that may never be needed. Once under way it may take from lower-ranked idle streams, never from new work:
  two streams would take turns for ever, neither getting its chunk computed.
- If that leaves the step empty, the first candidate that can get anything gets it: the admission rule and the watermark
  no longer count, and a new chunk may take from any idle stream. What was computed before may not: two parked streams
  would take turns for ever, computing the same tokens again. Only if that does not help either, the victims' minimum
  residency no longer counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge

from stream2llm_pod.scheduling.victims import cheapest_among_equals
from stream2llm_pod.scheduling.views import Candidate, Limits, Victim

MAX_PASSED_OVER = 16
"""How many candidates that do not fit are passed over before the step stops looking (once something is granted)."""

VictimSource = Callable[[bool], Iterable[Victim]]
"""Given `idle`, the idle or the other holders of blocks and slots, lowest rank first."""


@dataclass(slots=True)
class Plan:
    """One step's decisions.

    grants: request id → tokens to compute, in rank order; victims: whom to preempt first; slot_victims: those among
    them that give up their run slot only, memory being sufficient; considered: how many candidates were looked at.
    """

    grants: dict[str, int] = field(default_factory=dict)
    victims: list[str] = field(default_factory=list)
    slot_victims: set[str] = field(default_factory=set)
    considered: int = 0


class _Remembered:
    """An iterable that is consumed once, as far as needed, and can be walked many times."""

    def __init__(self, load: Callable[[], Iterable[Victim]]) -> None:
        self._load = load
        self._rest: Iterator[Victim] | None = None
        self._seen: list[Victim] = []

    def __iter__(self) -> Iterator[Victim]:
        position = 0
        while True:
            if position == len(self._seen):
                if self._rest is None:
                    self._rest = iter(self._load())
                following = next(self._rest, None)
                if following is None:
                    return
                self._seen.append(following)
            yield self._seen[position]
            position += 1


class _Step:
    """What is left to spend while the plan grows."""

    def __init__(self, victims: VictimSource, limits: Limits) -> None:
        self.plan = Plan()
        self.limits = limits
        self.budget_tokens = limits.budget_tokens
        self.free_blocks = limits.free_blocks
        self.free_slots = limits.free_slots
        self.parked_slots = limits.parked_slots
        self.left_out: list[Candidate] = []
        self.gone: set[str] = set()
        self.last_resort = False
        self.spares_the_protected = True
        self._active = _Remembered(lambda: victims(False))
        self._idle = _Remembered(lambda: victims(True))

    def admits(self) -> bool:
        """Whether a newcomer could have a slot."""
        return self.free_slots > 0 or self.parked_slots > 0

    def serve(self, candidate: Candidate) -> bool:
        """Grant what the candidate can have; False if that is nothing."""
        todo_tokens = candidate.todo_tokens - candidate.restored_tokens
        tokens = min(todo_tokens, self.budget_tokens)
        if tokens <= 0:
            return False
        kept_free = 0
        if not candidate.holds_slot and not self.last_resort:
            kept_free = self.limits.watermark_blocks
            if not self._could_have(candidate, self._blocks_for(candidate, todo_tokens) + kept_free):
                return False
        if not self._obtain(candidate, self._blocks_for(candidate, tokens) + kept_free):
            # A request that already runs goes on with what is there; a newcomer would only hold memory and stall.
            if not (candidate.holds_slot or (self.last_resort and self.free_slots > 0)):
                return False
            tokens = min(tokens, self._fitting_tokens(candidate))
            if tokens <= 0:
                return False
        self.free_blocks -= self._blocks_for(candidate, tokens)
        self.free_slots -= not candidate.holds_slot
        self.budget_tokens -= tokens
        self.plan.grants[candidate.req_id] = tokens
        return True

    def _blocks_for(self, candidate: Candidate, tokens: int) -> int:
        end = candidate.computed_tokens + candidate.restored_tokens + tokens + self.limits.lookahead_tokens
        return max(-(-end // self.limits.block_size) - candidate.held_blocks - candidate.shared_blocks, 0)

    def _fitting_tokens(self, candidate: Candidate) -> int:
        room_blocks = candidate.held_blocks + candidate.shared_blocks + self.free_blocks
        room_tokens = room_blocks * self.limits.block_size - self.limits.lookahead_tokens
        return room_tokens - candidate.computed_tokens - candidate.restored_tokens

    def _may_take(self, victim: Victim, candidate: Candidate, any_idle: bool) -> bool:
        if victim.req_id in self.gone or victim.req_id in self.plan.grants or victim.req_id == candidate.req_id:
            return False
        if victim.protected and self.spares_the_protected:
            return False
        if not (victim.idle or candidate.complete or candidate.fresh):
            return False
        return victim.rank > candidate.rank or (victim.idle and any_idle)

    def _eligible(self, candidate: Candidate) -> Iterator[Victim]:
        """Whom the candidate may push out, lowest rank first."""
        if not (candidate.complete or candidate.fresh or candidate.holds_slot):
            return
        any_idle = candidate.complete or (self.last_resort and candidate.fresh)
        for victim in merge(self._active, self._idle, key=lambda v: v.rank, reverse=True):
            if victim.rank <= candidate.rank:
                break
            if self._may_take(victim, candidate, any_idle):
                yield victim
        if any_idle:
            for victim in self._idle:
                if victim.rank <= candidate.rank and self._may_take(victim, candidate, any_idle):
                    yield victim

    def _could_have(self, candidate: Candidate, blocks: int) -> bool:
        available_blocks = self.free_blocks
        if blocks <= available_blocks:
            return True
        for victim in self._eligible(candidate):
            available_blocks += victim.freeable_blocks
            if blocks <= available_blocks:
                return True
        return False

    def _obtain(self, candidate: Candidate, blocks: int) -> bool:
        """Preempt until `blocks` are free, and a run slot if the candidate has none; all or nothing."""
        has_slot = candidate.holds_slot or self.free_slots > 0
        short_blocks = blocks - self.free_blocks
        if has_slot and short_blocks <= 0:
            return True
        chosen: list[Victim] = []
        for_slot: set[str] = set()
        for victim in cheapest_among_equals(self._eligible(candidate)):
            if short_blocks <= 0:
                # Only a parked stream gives up its slot for nothing else: what runs will end by itself.
                if not (victim.parked and victim.holds_slot):
                    continue
                for_slot.add(victim.req_id)
            elif victim.freeable_blocks <= 0 and not (not has_slot and victim.parked and victim.holds_slot):
                continue
            chosen.append(victim)
            short_blocks -= victim.freeable_blocks
            has_slot = has_slot or victim.holds_slot
            if has_slot and short_blocks <= 0:
                break
        if not has_slot or short_blocks > 0:
            return False
        needs_slot = not candidate.holds_slot and self.free_slots <= 0
        for victim in _spared(chosen, -short_blocks, needs_slot):
            chosen.remove(victim)
            for_slot.discard(victim.req_id)
        for victim in chosen:
            self.gone.add(victim.req_id)
            self.plan.victims.append(victim.req_id)
            self.free_blocks += victim.freeable_blocks
            self.free_slots += victim.holds_slot
            self.parked_slots -= victim.parked and victim.holds_slot
        self.plan.slot_victims |= for_slot
        return True


def _spared(chosen: Sequence[Victim], spare_blocks: int, needs_slot: bool) -> list[Victim]:
    """Those whom the later ones have made superfluous, the dearest first; `spare_blocks` more are freed than needed."""
    slots = sum(victim.holds_slot for victim in chosen)
    spared = []
    for victim in sorted(chosen, key=lambda v: v.price, reverse=True):
        if victim.freeable_blocks <= spare_blocks and not (needs_slot and victim.holds_slot and slots == 1):
            spared.append(victim)
            spare_blocks -= victim.freeable_blocks
            slots -= victim.holds_slot
    return spared


def _in_rank_order(
    holders: Iterator[Candidate], newcomers: Iterator[Candidate], admits: Callable[[], bool]
) -> Iterator[Candidate]:
    """Both in one order; a newcomer is made only while there is a slot for it."""
    holder, newcomer = next(holders, None), None
    while True:
        if newcomer is None and admits():
            newcomer = next(newcomers, None)
        if newcomer is not None and (holder is None or newcomer.rank < holder.rank):
            yield newcomer
            newcomer = None
        elif holder is not None:
            yield holder
            holder = next(holders, None)
        else:
            return


def plan_step(
    holders: Iterable[Candidate],
    newcomers: Iterable[Candidate],
    victims: VictimSource,
    limits: Limits,
    *,
    may_resort: Callable[[], bool] = lambda: True,
) -> Plan:
    """Plan one step.

    holders: candidates that occupy a run slot, in rank order; newcomers: those that need one, in rank order;
    victims: asked for only when memory or slots are short; may_resort: asked when nothing was granted, whether the
    exceptions for an empty step apply.
    """
    step = _Step(victims, limits)
    for candidate in _in_rank_order(iter(holders), iter(newcomers), step.admits):
        if candidate.req_id in step.gone:
            continue
        step.plan.considered += 1
        if candidate.todo_tokens <= candidate.restored_tokens:
            continue
        if not step.serve(candidate):
            step.left_out.append(candidate)
        if step.budget_tokens <= 0 or (step.plan.grants and len(step.left_out) >= MAX_PASSED_OVER):
            break
    if not step.plan.grants and step.left_out and may_resort():
        step.last_resort = True
        for spares in (True, False):
            step.spares_the_protected = spares
            for candidate in step.left_out:
                if candidate.req_id not in step.gone and step.serve(candidate):
                    return step.plan
    return step.plan
