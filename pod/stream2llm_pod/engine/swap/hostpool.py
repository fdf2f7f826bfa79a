"""Whose computed tokens lie in the host pool, and which blocks the workers must copy in the step being put together.

Pure bookkeeping on the scheduler's side; the copies themselves are the workers'. Slot numbers are the same on every
rank, and each rank copies its own shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stream2llm_pod.engine.swap.slots import HostSlots


@dataclass(slots=True)
class Copies:
    """The copies of one step. All of `out` come before any of `into`, and both before anything is computed."""

    out: list[tuple[int, int]] = field(default_factory=list)
    """(device block, host slot)."""
    into: list[tuple[int, int]] = field(default_factory=list)
    """(host slot, device block)."""

    def __bool__(self) -> bool:
        return bool(self.out or self.into)


@dataclass(slots=True)
class _Held:
    tokens: int
    slots: list[int]


class HostPool:
    """KV of preempted requests, by request id. A request's tokens lie there from its first one on, without a gap."""

    def __init__(self, slots: int, block_size: int) -> None:
        self._slots = HostSlots(slots)
        self._block_size = block_size
        self._held: dict[str, _Held] = {}
        self._copies = Copies()

    @property
    def total_slots(self) -> int:
        return self._slots.total

    @property
    def used_slots(self) -> int:
        """Slots that some request's tokens lie in."""
        return sum(len(held.slots) for held in self._held.values())

    @property
    def free_slots(self) -> int:
        """Slots that can be had now."""
        return self._slots.free

    @property
    def returning_slots(self) -> int:
        """Slots that can be had from the next step on."""
        return self._slots.returning

    @property
    def holders(self) -> frozenset[str]:
        return frozenset(self._held)

    def has_room(self, tokens: int) -> bool:
        return self._blocks(tokens) <= self._slots.free

    def tokens(self, req_id: str) -> int:
        """How many tokens of the request lie in the pool."""
        held = self._held.get(req_id)
        return 0 if held is None else held.tokens

    def restorable_tokens(self, req_id: str, known_tokens: int) -> int:
        """How many tokens a request that knows `known_tokens` would get back: one is always left to compute."""
        held = self._held.get(req_id)
        return 0 if held is None else max(min(held.tokens, known_tokens - 1), 0)

    def store(self, req_id: str, tokens: int, block_ids: Sequence[int]) -> bool:
        """Have the first `tokens` tokens, which are in `block_ids`, copied out with the next step.

        The blocks may be freed at once. False, and nothing changed, if there is no room or nothing to store.
        """
        blocks = self._blocks(tokens)
        if blocks == 0 or blocks > len(block_ids):
            return False
        slots = self._slots.take(blocks)
        if slots is None:
            return False
        self.drop(req_id)
        self._held[req_id] = _Held(tokens, slots)
        self._copies.out.extend(zip(block_ids, slots, strict=False))
        return True

    def trim(self, req_id: str, tokens: int) -> int:
        """Keep at most the first `tokens` tokens; returns how many were dropped."""
        held = self._held.get(req_id)
        if held is None or held.tokens <= tokens:
            return 0
        dropped = held.tokens - tokens
        kept_blocks = self._blocks(tokens)
        self._slots.give_back(held.slots[kept_blocks:])
        del held.slots[kept_blocks:]
        held.tokens = tokens
        if not tokens:
            del self._held[req_id]
        return dropped

    def drop(self, req_id: str) -> int:
        """Forget the request; returns how many tokens it had here."""
        return self.trim(req_id, 0)

    def drop_all(self) -> None:
        for req_id in list(self._held):
            self.drop(req_id)

    def restore(self, req_id: str, start_tokens: int, end_tokens: int, block_ids: Sequence[int]) -> None:
        """Have tokens `start_tokens` (a block's first) up to `end_tokens` copied into their places in `block_ids`, the
        request's whole table, with the next step; then the request has nothing here any more."""
        held = self._held[req_id]
        first, end = start_tokens // self._block_size, self._blocks(end_tokens)
        self._copies.into.extend(zip(held.slots[first:end], block_ids[first:end], strict=True))
        self.drop(req_id)

    def seal(self) -> Copies:
        """The copies of the step, now fixed; a new step begins."""
        copies, self._copies = self._copies, Copies()
        self._slots.step_sealed()
        return copies

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_size)
