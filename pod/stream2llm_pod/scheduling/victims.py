"""Who gives up memory first, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from stream2llm_pod.scheduling.costs import CostModel, Preemption, choose
from stream2llm_pod.scheduling.learnt import LearntCosts
from stream2llm_pod.scheduling.views import Victim

COST = "cost"
PREEMPTION_KINDS = (COST, *(str(kind) for kind in Preemption))
"""What may be asked for: always the one, always the other, or whichever costs less."""

EQUALS_COMPARED = 16
"""How many victims of equal rank are priced against one another. Thousands of streams may be parked with equal rank,
and looking at one means counting its blocks."""


def cheapest_among_equals(victims: Iterable[Victim], compared: int = EQUALS_COMPARED) -> Iterator[Victim]:
    """Lowest rank first as given; neighbours of one level, up to `compared` at a time, by their price per block freed.

    A victim that frees nothing comes last among its equals. Order is kept where prices are equal.
    """
    equals: list[Victim] = []
    for victim in victims:
        if equals and (victim.level != equals[0].level or len(equals) == compared):
            yield from sorted(equals, key=_price_per_block)
            equals.clear()
        equals.append(victim)
    yield from sorted(equals, key=_price_per_block)


def _price_per_block(victim: Victim) -> float:
    return victim.price / victim.freeable_blocks if victim.freeable_blocks > 0 else float("inf")


class Preemptions:
    """How each victim gives up its blocks, and what that costs."""

    def __init__(self, kind: str, costs: CostModel | None, has_room: Callable[[int], bool]) -> None:
        """kind: one of `PREEMPTION_KINDS`; costs: None where no cost profile is known; has_room: whether the host pool
        can hold that many tokens now. ValueError for an unknown kind, or `cost` without costs."""
        if kind not in PREEMPTION_KINDS:
            raise ValueError(f"preemption {kind!r} is not known; choose one of {', '.join(PREEMPTION_KINDS)}")
        if kind == COST and costs is None:
            raise ValueError("preemption 'cost' needs a cost profile (--cost-profile)")
        self.kind, self.costs = kind, costs
        self._learnt = LearntCosts()
        self._has_room = has_room

    @property
    def figures(self) -> CostModel | LearntCosts:
        """What reported costs come from: without a cost profile, what was learnt while serving."""
        return self.costs or self._learnt

    def choose(self, tokens: int, kept_tokens: int) -> Preemption:
        """For a victim with `tokens` computed tokens, of which the prefix cache would give back the first
        `kept_tokens`."""
        if self.kind == Preemption.RECOMPUTE:
            return Preemption.RECOMPUTE
        has_room = self._has_room(tokens)
        if self.kind == COST and self.costs is not None:
            return choose(self.costs, tokens=tokens, kept_tokens=kept_tokens, swapped_tokens=tokens, has_room=has_room)
        return Preemption.SWAP if has_room and tokens > 0 else Preemption.RECOMPUTE

    def cost_ms(self, how: Preemption, tokens: int, kept_tokens: int) -> float:
        """Predicted cost of that preemption, in milliseconds; 0 while nothing is known."""
        if how is Preemption.SWAP:
            return self.figures.swap_ms(tokens)
        return self.figures.recompute_ms(tokens, kept_tokens)

    def price(self, tokens: int, kept_tokens: int) -> float:
        """What to compare victims by: milliseconds, or the tokens that are lost where no cost profile is known."""
        if self.costs is None:
            return float(max(tokens - kept_tokens, 0))
        return self.cost_ms(self.choose(tokens, kept_tokens), tokens, kept_tokens)
