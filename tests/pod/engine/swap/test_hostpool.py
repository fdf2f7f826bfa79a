"""The host pool's bookkeeping against a model in which copies really move values."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stream2llm_pod.engine.swap.hostpool import HostPool

BLOCK = 4


def test_a_partial_last_block_takes_a_slot_of_its_own() -> None:
    pool = HostPool(4, BLOCK)
    assert pool.store("a", 9, [7, 5, 6])
    assert pool.used_slots == 3
    copies = pool.seal()
    assert copies.out == [(7, 0), (5, 1), (6, 2)]
    assert copies.into == []
    pool.restore("a", 0, 9, [1, 2, 3, 4])
    copies = pool.seal()
    assert copies.into == [(0, 1), (1, 2), (2, 3)]
    assert pool.used_slots == 0


def test_what_the_prefix_cache_still_has_is_not_copied_back() -> None:
    pool = HostPool(4, BLOCK)
    pool.store("a", 9, [7, 5, 6])
    pool.seal()
    pool.restore("a", 4, 9, [1, 2, 3])
    assert pool.seal().into == [(1, 2), (2, 3)]


def test_blocks_beyond_the_computed_tokens_are_not_stored() -> None:
    pool = HostPool(4, BLOCK)
    assert pool.store("a", 4, [7, 5, 6])
    assert pool.seal().out == [(7, 0)]


def test_a_full_pool_refuses_and_keeps_what_it_has() -> None:
    pool = HostPool(2, BLOCK)
    assert pool.store("a", 5, [1, 2])
    assert not pool.has_room(1)
    assert not pool.store("b", 1, [3])
    assert pool.tokens("a") == 5
    assert pool.holders == {"a"}


def test_nothing_is_stored_of_a_request_without_tokens() -> None:
    pool = HostPool(2, BLOCK)
    assert not pool.store("a", 0, [])
    assert not pool.seal()


def test_trimming_gives_back_whole_blocks_and_drops_at_nothing() -> None:
    pool = HostPool(3, BLOCK)
    pool.store("a", 12, [1, 2, 3])
    assert pool.trim("a", 12) == 0
    assert pool.trim("a", 5) == 7
    assert (pool.tokens("a"), pool.used_slots) == (5, 2)
    assert pool.trim("a", 0) == 5
    assert pool.holders == frozenset()
    assert pool.drop("a") == 0


def test_one_token_is_always_left_to_compute() -> None:
    pool = HostPool(3, BLOCK)
    pool.store("a", 8, [1, 2])
    assert [pool.restorable_tokens("a", known) for known in (1, 5, 8, 9, 20)] == [0, 4, 7, 8, 8]
    assert pool.restorable_tokens("b", 9) == 0


def test_a_slot_trimmed_before_its_copy_is_not_written_by_another_in_that_step() -> None:
    pool = HostPool(1, BLOCK)
    pool.store("a", 4, [9])
    pool.drop("a")
    assert not pool.store("b", 4, [8])
    assert pool.seal().out == [(9, 0)]
    assert pool.store("b", 4, [8])


class Pool(RuleBasedStateMachine):
    """Requests come, are preempted, trimmed and restored; values are (request, token) pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = HostPool(10, BLOCK)
        self.device: dict[int, list[object]] = {}
        self.host: dict[int, list[object]] = {slot: [None] * BLOCK for slot in range(10)}
        self.held: dict[str, int] = {}
        self.awaited: list[tuple[str, int, list[int]]] = []
        self.next_block = 0
        self.serial = 0

    def _new_block(self) -> int:
        self.next_block += 1
        self.device[self.next_block] = [None] * BLOCK
        return self.next_block

    @rule(name=st.sampled_from("abcde"), tokens=st.integers(0, 18))
    def preempt(self, name: str, tokens: int) -> None:
        if name in self.held or any(name == waiting for waiting, _, _ in self.awaited):
            return
        blocks = [self._new_block() for _ in range(-(-tokens // BLOCK))]
        for token in range(tokens):
            self.device[blocks[token // BLOCK]][token % BLOCK] = (name, token)
        room = self.pool.has_room(tokens)
        stored = self.pool.store(name, tokens, blocks)
        assert stored == (room and tokens > 0)
        if stored:
            self.held[name] = tokens

    @precondition(lambda self: self.held)
    @rule(data=st.data(), tokens=st.integers(0, 18))
    def trim(self, data: st.DataObject, tokens: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        assert self.pool.trim(name, tokens) == max(self.held[name] - tokens, 0)
        self.held[name] = min(self.held[name], tokens)
        if not self.held[name]:
            del self.held[name]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), cached_blocks=st.integers(0, 5), known=st.integers(1, 20))
    def restore(self, data: st.DataObject, cached_blocks: int, known: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        end = self.pool.restorable_tokens(name, known)
        assert end == min(self.held[name], known - 1)
        del self.held[name]
        start = cached_blocks * BLOCK
        if start >= end:
            self.pool.drop(name)
            return
        blocks = [self._new_block() for _ in range(-(-known // BLOCK))]
        for token in range(start):
            self.device[blocks[token // BLOCK]][token % BLOCK] = (name, token)
        self.pool.restore(name, start, end, blocks)
        self.awaited.append((name, end, blocks))

    @rule()
    def step(self) -> None:
        copies = self.pool.seal()
        written = [slot for _, slot in copies.out]
        read = [slot for slot, _ in copies.into]
        assert len(written) == len(set(written))
        assert len(read) == len(set(read))
        for block, slot in copies.out:
            self.host[slot] = list(self.device[block])
        for slot, block in copies.into:
            self.device[block] = list(self.host[slot])
        for name, tokens, blocks in self.awaited:
            found = [self.device[blocks[token // BLOCK]][token % BLOCK] for token in range(tokens)]
            assert found == [(name, token) for token in range(tokens)]
        self.awaited.clear()

    @invariant()
    def the_pool_holds_what_the_model_holds(self) -> None:
        assert {name: self.pool.tokens(name) for name in self.pool.holders} == self.held
        assert self.pool.used_slots == sum(-(-tokens // BLOCK) for tokens in self.held.values())


TestPool = Pool.TestCase
