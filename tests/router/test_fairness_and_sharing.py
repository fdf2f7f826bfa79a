"""How tenants share a router, and routers share tenants."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm_router.fairness import Turns
from stream2llm_router.sharing import share

NAMES = st.sets(st.text("abcdef", min_size=1, max_size=4), max_size=12)


@pytest.mark.parametrize(
    ("weights", "batches", "expected"),
    [
        ({"a": 1.0, "b": 1.0}, 100, {"a": 50, "b": 50}),
        ({"a": 3.0, "b": 1.0}, 100, {"a": 75, "b": 25}),
        ({"a": 1.0, "b": 1.0, "c": 2.0}, 100, {"a": 25, "b": 25, "c": 50}),
    ],
)
def test_backlogged_tenants_get_their_weights(
    weights: dict[str, float], batches: int, expected: dict[str, int]
) -> None:
    turns = Turns()
    got: Counter[str] = Counter()
    for _ in range(batches):
        tenant = turns.next(list(weights))
        turns.charge(tenant, 1_000, 10, weights)
        got[tenant] += 1
    assert all(abs(got[tenant] - count) <= 1 for tenant, count in expected.items()), got


def test_bytes_count_and_not_batches() -> None:
    turns = Turns()
    got: Counter[str] = Counter()
    for _ in range(220):
        tenant = turns.next(["big", "small"])
        turns.charge(tenant, 99_000 if tenant == "big" else 9_000, 1, {})
        got[tenant] += 1
    assert got == {"big": 20, "small": 200}


def test_who_was_idle_does_not_catch_up() -> None:
    turns = Turns()
    for _ in range(1_000):
        turns.charge(turns.next(["busy"]), 1_000, 1, {})
    got: Counter[str] = Counter()
    for _ in range(100):
        tenant = turns.next(["busy", "new"])
        turns.charge(tenant, 1_000, 1, {})
        got[tenant] += 1
    assert 49 <= got["new"] <= 51


@given(tenants=NAMES, routers=NAMES)
def test_every_tenant_has_one_router_and_no_router_has_more_than_its_part(tenants: set[str], routers: set[str]) -> None:
    shares = share(tenants, routers)
    if not routers:
        assert shares == {}
        return
    assert shares.keys() == tenants
    assert set(shares.values()) <= routers
    assert all(count <= -(-len(tenants) // len(routers)) for count in Counter(shares.values()).values())
    assert shares == share(sorted(tenants, reverse=True), sorted(routers))


def test_one_router_more_moves_few_tenants() -> None:
    tenants = [f"t{i}" for i in range(100)]
    before, after = share(tenants, ["a", "b", "c"]), share(tenants, ["a", "b", "c", "d"])
    moved = [tenant for tenant in tenants if before[tenant] != after[tenant]]
    assert sum(after[tenant] == "d" for tenant in moved) == 25
    assert len(moved) <= 45
