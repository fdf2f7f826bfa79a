"""Whom to preempt among equals, and how."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm_pod.scheduling.costs import CostCurve, CostModel, Preemption
from stream2llm_pod.scheduling.planner import plan_step
from stream2llm_pod.scheduling.policies import POLICIES, make_policy
from stream2llm_pod.scheduling.victims import Preemptions, cheapest_among_equals
from stream2llm_pod.scheduling.views import Candidate, Limits, StreamView, Victim

# Recomputing grows with the square of the length; a swap has a fixed cost and then little. They cross at 40 tokens.
COSTS = CostModel(
    CostCurve([(n, n * n / 100) for n in (1, 10, 20, 40, 80, 160)]),
    CostCurve([(1, 8.0), (160, 8.0)]),
    CostCurve([(1, 8.0), (160, 8.0)]),
)


def victim(name: str, level: int, freeable_blocks: int, price: float) -> Victim:
    return Victim(name, (level, name), True, freeable_blocks, True, level=(level,), price=price)


def names(victims: list[Victim], compared: int = 16) -> list[str]:
    return [v.req_id for v in cheapest_among_equals(victims, compared)]


def test_the_lowest_rank_goes_first_whatever_it_costs() -> None:
    assert names([victim("low", 2, 1, 100.0), victim("high", 1, 1, 1.0)]) == ["low", "high"]


def test_among_equals_the_cheapest_per_block_goes_first() -> None:
    equals = [victim("a", 1, 2, 10.0), victim("b", 1, 4, 12.0), victim("c", 1, 1, 4.0)]
    assert names(equals) == ["b", "c", "a"]


def test_one_that_frees_nothing_goes_last_among_its_equals() -> None:
    assert names([victim("none", 1, 0, 0.0), victim("dear", 1, 1, 99.0), victim("next", 0, 1, 1.0)]) == [
        "dear",
        "none",
        "next",
    ]


def test_equal_prices_keep_the_order_of_rank() -> None:
    assert names([victim(name, 1, 2, 6.0) for name in "cab"]) == ["c", "a", "b"]


def test_only_so_many_equals_are_looked_at() -> None:
    asked = []

    def source() -> object:
        for i in range(100):
            asked.append(i)
            yield victim(f"{i}", 1, 1, 100.0 - i)

    first = next(cheapest_among_equals(source(), 4))  # type: ignore[arg-type]
    assert first.req_id == "3"
    assert len(asked) == 5


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.floats(0, 100)), max_size=30), st.integers(1, 8))
def test_nobody_is_lost_and_levels_stay_in_order(drawn: list[tuple[int, int, float]], compared: int) -> None:
    given_ = [victim(f"{i:02}", -level, blocks, price) for i, (level, blocks, price) in enumerate(sorted(drawn))]
    found = list(cheapest_among_equals(given_, compared))
    assert sorted(v.req_id for v in found) == sorted(v.req_id for v in given_)
    assert [v.level for v in found] == [v.level for v in given_]


def test_the_planner_takes_the_cheapest_of_equal_streams() -> None:
    parked = [victim("dear", 5, 2, 50.0), victim("cheap", 5, 2, 5.0)]
    newcomer = Candidate("new", (0, "new"), True, False, 32, 0, 0)
    limits = Limits(budget_tokens=64, free_blocks=0, block_size=16, free_slots=1, parked_slots=2)
    plan = plan_step([], [newcomer], lambda of_parked: parked if of_parked else [], limits)
    assert (plan.victims, plan.grants) == (["cheap"], {"new": 32})


def test_whoever_a_later_victim_makes_superfluous_is_spared() -> None:
    parked = [victim("a", 5, 2, 2.0), victim("b", 5, 2, 3.0), victim("long", 5, 10, 50.0)]
    newcomer = Candidate("new", (0, "new"), True, False, 160, 0, 0)
    limits = Limits(budget_tokens=512, free_blocks=0, block_size=16, free_slots=1, parked_slots=3)
    assert plan_step([], [newcomer], lambda idle: parked if idle else [], limits).victims == ["long"]
    # Two blocks more, and one of the small ones is needed: the cheaper.
    longer = Candidate("new", (0, "new"), True, False, 192, 0, 0)
    assert plan_step([], [longer], lambda idle: parked if idle else [], limits).victims == ["a", "long"]


@pytest.mark.parametrize("policy", POLICIES)
def test_streams_that_differ_only_in_arrival_and_name_are_equals_unless_arrival_is_the_rule(policy: str) -> None:
    ranked = make_policy(policy)
    keys = [
        ranked.key(StreamView(name, True, arrival_s, 5.0, 5.0, 100, 100), 6.0)
        for name, arrival_s in (("a", 1.0), ("b", 2.0))
    ]
    assert (ranked.level(keys[0]) == ranked.level(keys[1])) is (policy not in ("default", "fcfs", "auto"))
    assert ranked.level(ranked.key(StreamView("a", True, 1.0, 5.0, 5.0, 100, 100), 6.0)) == ranked.level(keys[0])


@pytest.mark.parametrize(
    ("kind", "tokens", "has_room", "how"),
    [
        ("recompute", 100, True, Preemption.RECOMPUTE),
        ("swap", 10, True, Preemption.SWAP),
        ("swap", 100, False, Preemption.RECOMPUTE),
        ("swap", 0, True, Preemption.RECOMPUTE),
        ("cost", 20, True, Preemption.RECOMPUTE),
        ("cost", 80, True, Preemption.SWAP),
        ("cost", 80, False, Preemption.RECOMPUTE),
    ],
)
def test_how_a_victim_gives_way(kind: str, tokens: int, has_room: bool, how: Preemption) -> None:
    assert Preemptions(kind, COSTS, lambda _: has_room).choose(tokens, 0) is how


def test_what_the_prefix_cache_keeps_is_not_lost() -> None:
    preemptions = Preemptions("cost", COSTS, lambda _: True)
    assert preemptions.choose(80, 0) is Preemption.SWAP
    assert preemptions.choose(80, 76) is Preemption.RECOMPUTE


def test_prices_are_the_cheaper_way_or_tokens() -> None:
    preemptions = Preemptions("cost", COSTS, lambda _: True)
    assert preemptions.price(80, 0) == 16.0
    assert preemptions.price(20, 0) == 4.0
    without = Preemptions("swap", None, lambda _: True)
    assert without.price(80, 30) == 50.0
    assert without.cost_ms(Preemption.SWAP, 80, 0) == 0.0


def test_a_bad_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="preemption 'drop' is not known; choose one of cost, recompute, swap"):
        Preemptions("drop", None, lambda _: True)
    with pytest.raises(ValueError, match="needs a cost profile"):
        Preemptions("cost", None, lambda _: True)
