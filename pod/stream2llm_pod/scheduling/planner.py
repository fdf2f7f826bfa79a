"""Phase 1: decide who runs with how many tokens and who gives up memory. Pure; changes nothing.

Inputs are iterated lazily and only as far as the step's budget and slots reach, because making a candidate can cost a
prefix-cache look-up and making a victim means counting its blocks.

Rules
- Candidates are served in rank order while tokens, blocks and slots last.
- Several tenants take turns (`tenants.Turns`): the one that is furthest behind its share of prefill goes first, and
  ranks count among its own candidates only. Tokens are kept for those who decode, so that they do not wait for their
  tenant's turn.
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
- What lies in the host pool whole comes back with its stream's next chunk, or its finish, and not before: a copy takes
  as long then as now, and free memory that is filled with it must be emptied again for whoever needs it next.
- Where `Limits.finishes_alone` says so, open prompts get nothing of a step that computes a whole one: its first token
  comes as much sooner. The scheduler asks for it at most every other step, so open prompts never stand still.
- If that leaves the step empty, the first candidate that can get anything gets it: the admission rule and the watermark
  no longer count, and a new chunk may take from any idle stream. What was computed before may not: two parked streams
  would take turns for ever, computing the same tokens again. Only if that does not help either, the victims' minimum
  residency no longer counts. In such a step tenants do not count: all candidates and victims are in one order.

Memory between tenants
- A tenant that stays within its share takes from one that is over its own (but for that one's only stream), and any
  tenant from one that still holds, by weight, no less than itself does afterwards; from the one that holds most first,
  itself included. So nobody takes back what it gave, and two tenants never take turns.
- A tenant's only stream may take from any that has another one; and, once overdue, from anybody by rank.
- A whole prompt that has no room even with all that its tenant holds may take from any idle stream: it must not wait
  for another tenant's producers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge

from stream2llm_pod.scheduling.tenants import Holding
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
    them that give up their run slot only, memory being sufficient; considered: how many candidates were looked at;
    held_back: open prompts got nothing, so that the step is over sooner.
    """

    grants: dict[str, int] = field(default_factory=dict)
    victims: list[str] = field(default_factory=list)
    slot_victims: set[str] = field(default_factory=set)
    considered: int = 0
    held_back: bool = False


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


@dataclass(slots=True)
class TenantQueue:
    """What one tenant brings to a step."""

    tenant: str
    holders: Iterable[Candidate]
    """Candidates that occupy a run slot, in rank order."""
    newcomers: Iterable[Candidate]
    """Those that need one, in rank order."""
    victims: VictimSource
    """Asked for only when memory or slots are short."""
    weight: float = 1.0
    virtual_time: float = 0.0
    """`Turns.time`, in tokens ÷ weight."""
    decoding: int = 0
    """How many of the holders want the one token of a decode, roughly."""
    held: Callable[[], tuple[int, int]] = lambda: (0, 0)
    """KV blocks and run slots that its requests hold; asked for only when several tenants are short of them."""


class _Side:
    """One tenant while the plan grows."""

    def __init__(self, queue: TenantQueue, admits: Callable[[], bool]) -> None:
        self.queue = queue
        self.time = queue.virtual_time
        self.candidates = _in_rank_order(iter(queue.holders), iter(queue.newcomers), admits)
        self.head: Candidate | None = None
        self.left_out = 0
        self.closed = False
        self._victims: dict[bool, _Remembered] = {}
        self.more_blocks = self.more_slots = 0
        self._held: tuple[int, int] | None = None

    def advance(self) -> bool:
        """Look at its next candidate; False if there is none."""
        self.head = None if self.closed else next(self.candidates, None)
        return self.head is not None

    def victims(self, idle: bool) -> _Remembered:
        """Its idle or its other holders of memory; made when memory is short, which is seldom."""
        found = self._victims.get(idle)
        if found is None:
            found = self._victims[idle] = _Remembered(lambda: self.queue.victims(idle))
        return found

    def turn(self) -> tuple[float, str]:
        """The smallest goes first."""
        return (self.time, self.queue.tenant)

    def holding(self) -> Holding:
        """What it holds as the plan stands."""
        if self._held is None:
            self._held = self.queue.held()
        blocks, slots = self._held
        return Holding(self.queue.weight, blocks + self.more_blocks, slots + self.more_slots)


class _Step:
    """What is left to spend while the plan grows."""

    def __init__(self, queues: Sequence[TenantQueue], limits: Limits) -> None:
        self.plan = Plan()
        self.limits = limits
        self.budget_tokens = limits.budget_tokens
        self.free_blocks = limits.free_blocks
        self.free_slots = limits.free_slots
        self.parked_slots = limits.parked_slots
        self.left_out: list[tuple[_Side, Candidate]] = []
        self.gone: set[str] = set()
        self.last_resort = False
        self.spares_the_protected = True
        self._finishes = False
        self.sides = [_Side(queue, self.admits) for queue in queues]
        self._side_of: dict[str, _Side] = {}
        self._decodes_to_come = 0
        if len(queues) > 1:
            self._decodes_to_come = min(sum(queue.decoding for queue in queues), limits.budget_tokens // 2)

    def admits(self) -> bool:
        """Whether a newcomer could have a slot."""
        return self.free_slots > 0 or self.parked_slots > 0

    def in_turn(self) -> Iterator[tuple[_Side, Candidate]]:
        """All candidates: those of one tenant in rank order, the tenants by their virtual times as these move on."""
        if len(self.sides) == 1:
            for candidate in self.sides[0].candidates:
                yield self.sides[0], candidate
                if self.sides[0].closed:
                    return
        waiting = [side for side in self.sides if side.advance()]
        while waiting:
            side = min(waiting, key=_Side.turn)
            if side.head is not None:
                yield side, side.head
            if not side.advance():
                waiting.remove(side)

    def consider(self, side: _Side, candidate: Candidate) -> None:
        """Serve the candidate, or note that it was left out."""
        self.plan.considered += 1
        if candidate.todo_tokens <= candidate.restored_tokens or (candidate.on_host and not candidate.fresh):
            return
        if self._finishes and self.limits.finishes_alone and not candidate.complete:
            self.plan.held_back = side.closed = True
            return
        if candidate.decodes and self._decodes_to_come > 0:
            self._decodes_to_come -= 1
        if not self.serve(side, candidate):
            self.left_out.append((side, candidate))
            side.left_out += 1
        side.closed = bool(self.plan.grants) and side.left_out >= MAX_PASSED_OVER

    def serve(self, side: _Side, candidate: Candidate) -> bool:
        """Grant what the candidate can have; False if that is nothing."""
        todo_tokens = candidate.todo_tokens - candidate.restored_tokens
        kept_tokens = 0 if candidate.decodes or self.last_resort else self._decodes_to_come
        tokens = min(todo_tokens, self.budget_tokens - kept_tokens)
        if tokens <= 0:
            return False
        kept_free = 0
        if not candidate.holds_slot and not self.last_resort:
            kept_free = self.limits.watermark_blocks
            if not self._could_have(side, candidate, self._blocks_for(candidate, todo_tokens) + kept_free):
                return False
        if not self._obtain(side, candidate, self._blocks_for(candidate, tokens) + kept_free):
            # A request that already runs goes on with what is there; a newcomer would only hold memory and stall.
            if not (candidate.holds_slot or (self.last_resort and self.free_slots > 0)):
                return False
            tokens = min(tokens, self._fitting_tokens(candidate))
            if tokens <= 0:
                return False
        blocks = self._blocks_for(candidate, tokens)
        self.free_blocks -= blocks
        self.free_slots -= not candidate.holds_slot
        self.budget_tokens -= tokens
        self.plan.grants[candidate.req_id] = tokens
        self._finishes = self._finishes or candidate.finishing
        side.more_blocks += blocks
        side.more_slots += not candidate.holds_slot
        if not candidate.decodes:
            side.time += tokens / side.queue.weight
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

    def _eligible(self, side: _Side, candidate: Candidate, blocks: int) -> Iterator[Victim]:
        """Whom the candidate may push out to have `blocks` more, in the order in which they go."""
        if not (candidate.complete or candidate.fresh or candidate.holds_slot):
            return
        if len(self.sides) == 1 or self.last_resort:
            yield from self._by_rank(self.sides, candidate)
        else:
            seen: set[str] = set()
            for victim in self._by_share(side, candidate, blocks):
                if victim.req_id not in seen:
                    seen.add(victim.req_id)
                    yield victim

    def _by_rank(self, sides: Sequence[_Side], candidate: Candidate) -> Iterator[Victim]:
        """Whom it may push out by rank alone, lowest rank first."""
        any_idle = candidate.complete or (self.last_resort and candidate.fresh)
        for side, victim in self._lowest_first(sides):
            if victim.rank <= candidate.rank:
                break
            if self._may_take(victim, candidate, any_idle):
                yield self._noted(side, victim)
        if any_idle:
            for side, victim in self._lowest_first(sides, idle_only=True):
                if victim.rank <= candidate.rank and self._may_take(victim, candidate, any_idle):
                    yield self._noted(side, victim)

    def _lowest_first(self, sides: Sequence[_Side], *, idle_only: bool = False) -> Iterator[tuple[_Side, Victim]]:
        sources = [
            _of_side(side, source)
            for side in sides
            for source in ((side.victims(True),) if idle_only else (side.victims(False), side.victims(True)))
        ]
        return merge(*sources, key=lambda pair: pair[1].rank, reverse=True)

    def _noted(self, side: _Side, victim: Victim) -> Victim:
        self._side_of[victim.req_id] = side
        return victim

    def _by_share(self, own: _Side, candidate: Candidate, blocks: int) -> Iterator[Victim]:
        """Whom it may push out, those of the tenant that holds most by weight first."""
        holdings = [(side, side.holding()) for side in self.sides]
        total = Holding(
            1.0,
            self.free_blocks + sum(holding.blocks for _, holding in holdings),
            self.free_slots + sum(holding.slots for _, holding in holdings),
        )
        mine = own.holding()
        only_one = mine.blocks <= candidate.held_blocks
        if only_one and candidate.overdue:
            yield from self._by_rank(self.sides, candidate)
            return
        afterwards = mine.share(total, more_blocks=blocks, more_slots=not candidate.holds_slot)
        whole_blocks = self._blocks_for(candidate, candidate.todo_tokens - candidate.restored_tokens)
        outgrows = candidate.complete and whole_blocks > self.free_blocks + mine.blocks
        for side, holding in sorted(holdings, key=lambda pair: (-pair[1].share(total), pair[0].queue.tenant)):
            if side is own:
                yield from self._by_rank((own,), candidate)
            elif candidate.complete or candidate.fresh:
                yield from self._over_share(side, holding, total, None if only_one else afterwards)
                if outgrows:
                    for victim in side.victims(True):
                        if self._may_take(victim, candidate, any_idle=True):
                            yield self._noted(side, victim)

    def _over_share(self, side: _Side, holding: Holding, total: Holding, afterwards: float | None) -> Iterator[Victim]:
        """Victims of a tenant for one whose share will be `afterwards`, or who has nothing else if that is None."""
        fair = 1 / sum(other.queue.weight for other in self.sides)
        for _, victim in self._lowest_first((side,)):
            if victim.req_id in self.gone or victim.req_id in self.plan.grants:
                continue
            # Not even the protected are spared: what goes cannot be taken back, so there is no thrashing to prevent.
            kept = Holding(
                holding.weight, holding.blocks - victim.freeable_blocks, holding.slots - int(victim.holds_slot)
            )
            if afterwards is None:
                gives = kept.blocks > 0
            else:
                over = kept.blocks > 0 and afterwards <= fair < holding.share(total)
                gives = over or kept.share(total) >= afterwards
            if gives:
                holding = kept
                yield self._noted(side, victim)
            elif afterwards is not None and holding.share(total) < max(afterwards, fair):
                return

    def _could_have(self, side: _Side, candidate: Candidate, blocks: int) -> bool:
        available_blocks = self.free_blocks
        if blocks <= available_blocks:
            return True
        for victim in self._eligible(side, candidate, blocks):
            available_blocks += victim.freeable_blocks
            if blocks <= available_blocks:
                return True
        return False

    def _obtain(self, side: _Side, candidate: Candidate, blocks: int) -> bool:
        """Preempt until `blocks` are free, and a run slot if the candidate has none; all or nothing."""
        has_slot = candidate.holds_slot or self.free_slots > 0
        short_blocks = blocks - self.free_blocks
        if has_slot and short_blocks <= 0:
            return True
        chosen: list[Victim] = []
        for_slot: set[str] = set()
        for victim in cheapest_among_equals(self._eligible(side, candidate, blocks)):
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
            loser = self._side_of[victim.req_id]
            loser.more_blocks -= victim.freeable_blocks
            loser.more_slots -= victim.holds_slot
        self.plan.slot_victims |= for_slot
        return True


def _of_side(side: _Side, victims: Iterable[Victim]) -> Iterator[tuple[_Side, Victim]]:
    return ((side, victim) for victim in victims)


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
    """Plan one step of one tenant; the arguments as in `TenantQueue` and `plan_tenants`."""
    return plan_tenants([TenantQueue("", holders, newcomers, victims)], limits, may_resort=may_resort)


def plan_tenants(
    queues: Sequence[TenantQueue], limits: Limits, *, may_resort: Callable[[], bool] = lambda: True
) -> Plan:
    """Plan one step.

    may_resort: asked when nothing was granted, whether the exceptions for an empty step apply.
    """
    step = _Step(queues, limits)
    for side, candidate in step.in_turn():
        if candidate.req_id in step.gone:
            continue
        step.consider(side, candidate)
        if step.budget_tokens <= 0:
            break
    if not step.plan.grants and step.left_out and may_resort():
        step.last_resort = True
        left_out = sorted(step.left_out, key=lambda pair: pair[1].rank)
        for spares in (True, False):
            step.spares_the_protected = spares
            for side, candidate in left_out:
                if candidate.req_id not in step.gone and step.serve(side, candidate):
                    return step.plan
    return step.plan
