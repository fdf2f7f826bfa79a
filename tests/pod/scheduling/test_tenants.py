"""Turns by weight over random backlogs, and plans in which tenants meet over tokens, memory and slots."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream2llm_pod.scheduling.planner import MAX_PASSED_OVER, Plan, TenantQueue, plan_step, plan_tenants
from stream2llm_pod.scheduling.tenants import Holding, Turns
from stream2llm_pod.scheduling.views import Candidate, Limits, RankKey, Victim

BUDGET = 1000


# ---------------------------------------------------------------- turns
def serve(turns: Turns, wanted: dict[str, int], weights: dict[str, float], budget: int = BUDGET) -> dict[str, int]:
    """One step of an engine with requests of any size: the furthest behind takes what it wants."""
    got: dict[str, int] = {}
    for tenant in sorted(wanted, key=lambda name: (turns.time(name), name)):
        tokens = min(wanted[tenant], budget)
        if tokens:
            got[tenant] = tokens
            budget -= tokens
    turns.charge(got, weights)
    return got


@given(
    st.dictionaries(st.sampled_from("abcd"), st.floats(0.001, 1000.0, allow_nan=False), min_size=2, max_size=4),
    st.integers(20, 200),
)
@settings(max_examples=200)
def test_backlogged_tenants_are_never_further_apart_than_one_step_each(weights: dict[str, float], steps: int) -> None:
    """The bound of start-time fair queueing, over any number of steps."""
    turns = Turns()
    got = dict.fromkeys(weights, 0)
    for _ in range(steps):
        for tenant, tokens in serve(turns, dict.fromkeys(weights, 10 * BUDGET), weights).items():
            got[tenant] += tokens
    for first, second in pairwise(sorted(weights)):
        apart = abs(got[first] / weights[first] - got[second] / weights[second])
        assert apart <= BUDGET / weights[first] + BUDGET / weights[second] + 1e-6


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 3 * BUDGET), min_size=1), max_size=60))
@settings(max_examples=200)
def test_who_always_has_work_gets_its_share_whatever_the_others_do(others: list[dict[str, int]]) -> None:
    """No starvation: between any two moments, a backlogged tenant of weight 1 beside up to three gets a quarter, but
    for the granularity of steps."""
    turns = Turns()
    weights = dict.fromkeys("abcz", 1.0)
    given_so_far = [0]
    for wanted in others:
        got = serve(turns, {**wanted, "z": 100 * BUDGET}, weights)
        given_so_far.append(given_so_far[-1] + got.get("z", 0))
    for start in range(len(given_so_far)):
        for end in range(start, len(given_so_far)):
            steps = end - start
            assert given_so_far[end] - given_so_far[start] >= steps * BUDGET / 4 - 4 * BUDGET


def test_a_tenant_that_was_idle_saves_up_no_turns() -> None:
    turns, weights = Turns(), {"a": 1.0, "b": 1.0}
    for _ in range(100):
        serve(turns, {"a": BUDGET}, weights)
    order = [next(iter(serve(turns, {"a": BUDGET, "b": BUDGET}, weights))) for _ in range(6)]
    assert order == ["b", "a", "b", "a", "b", "a"]


def test_a_tenant_that_had_the_engine_for_itself_owes_one_step_at_most() -> None:
    """`b` takes what `a` leaves, for long; `c` comes and does not get all that back at b's expense."""
    turns, weights = Turns(), dict.fromkeys("abc", 1.0)
    for _ in range(100):
        serve(turns, {"a": 10, "b": BUDGET}, weights)
    got = {"b": 0, "c": 0}
    for _ in range(10):
        for tenant, tokens in serve(turns, {"b": BUDGET, "c": BUDGET}, weights).items():
            got[tenant] += tokens
    assert abs(got["b"] - got["c"]) <= BUDGET


def test_going_away_for_a_moment_pays_nothing_back() -> None:
    """Short requests, one at a time, are no way around the turns."""
    turns, weights = Turns(), {"a": 1.0, "b": 0.25}
    got = {"a": 0, "b": 0}
    for _ in range(100):
        for tenant, tokens in serve(turns, {"a": BUDGET, "b": BUDGET}, weights).items():
            got[tenant] += tokens
        turns.keep({"a"})
    assert got["b"] / got["a"] == pytest.approx(0.25, rel=0.1)


def test_who_is_not_ahead_is_forgotten() -> None:
    turns = Turns()
    turns.charge({"a": BUDGET, "b": BUDGET}, {})
    turns.charge({"b": BUDGET}, {})
    turns.keep({"b"})
    assert len(turns) == 1


@pytest.mark.parametrize(
    ("blocks", "slots", "weight", "share"), [(50, 1, 1.0, 0.5), (10, 8, 1.0, 0.8), (50, 1, 2.0, 0.25), (0, 0, 1.0, 0.0)]
)
def test_what_counts_is_the_resource_that_is_held_most(blocks: int, slots: int, weight: float, share: float) -> None:
    assert Holding(weight, blocks, slots).share(Holding(1.0, 100, 10)) == pytest.approx(share)


# ---------------------------------------------------------------- plans
def candidate(name: str, rank: int = 0, **changes: object) -> Candidate:
    values: dict[str, object] = {
        "complete": True,
        "holds_slot": False,
        "todo_tokens": 64,
        "computed_tokens": 0,
        "held_blocks": 0,
        "fresh": True,
    }
    return Candidate(name, (rank, name), **(values | changes))  # type: ignore[arg-type]


def queue(
    tenant: str,
    newcomers: Iterable[Candidate] = (),
    *,
    holders: Iterable[Candidate] = (),
    active: Iterable[Victim] = (),
    parked: Iterable[Victim] = (),
    weight: float = 1.0,
    time: float = 0.0,
    decoding: int = 0,
    held: tuple[int, int] = (0, 0),
) -> TenantQueue:
    idle, others = list(parked), list(active)
    return TenantQueue(
        tenant,
        holders,
        newcomers,
        lambda wants_idle: idle if wants_idle else others,
        weight,
        time,
        decoding,
        lambda: held,
    )


def victim(name: str, rank: int, blocks: int, **changes: object) -> Victim:
    return Victim(name, (rank, name), bool(changes.pop("parked", False)), blocks, True, **changes)  # type: ignore[arg-type]


def by_rank(one: Candidate | Victim) -> RankKey:
    return one.rank


ROOMY = Limits(budget_tokens=100, free_blocks=1000, block_size=16, free_slots=100)


def test_the_tenant_that_is_behind_goes_first_whatever_the_ranks() -> None:
    plan = plan_tenants([queue("a", [candidate("a1", 9)], time=5.0), queue("b", [candidate("b1", 0)], time=7.0)], ROOMY)
    assert plan.grants == {"a1": 64, "b1": 36}


def test_turns_change_within_a_step() -> None:
    a = [candidate(f"a{i}", i, todo_tokens=20) for i in range(5)]
    b = [candidate(f"b{i}", i, todo_tokens=20) for i in range(5)]
    assert list(plan_tenants([queue("a", a), queue("b", b)], ROOMY).grants) == ["a0", "b0", "a1", "b1", "a2"]
    heavier = [queue("a", a, weight=3.0), queue("b", b)]
    assert list(plan_tenants(heavier, ROOMY).grants) == ["a0", "b0", "a1", "a2", "a3"]


def test_a_lone_tenant_gets_all() -> None:
    plan = plan_tenants([queue("a", [candidate("a1", todo_tokens=500)], weight=0.001), queue("b")], ROOMY)
    assert plan.grants == {"a1": 100}


def test_decodes_do_not_wait_for_their_tenants_turn() -> None:
    decode = candidate("b1", holds_slot=True, todo_tokens=1, computed_tokens=64, held_blocks=5)
    others = queue("b", holders=[decode], time=1e9, decoding=1)
    plan = plan_tenants([queue("a", [candidate("a1", todo_tokens=500)]), others], ROOMY)
    assert plan.grants == {"a1": 99, "b1": 1}


def test_decodes_leave_half_of_the_step_to_prompts() -> None:
    decodes = [candidate(f"b{i:03}", i, holds_slot=True, todo_tokens=1, held_blocks=1) for i in range(300)]
    others = queue("b", holders=decodes, time=1e9, decoding=300)
    plan = plan_tenants([queue("a", [candidate("a1", todo_tokens=500)]), others], ROOMY)
    assert plan.grants["a1"] == 50
    assert len(plan.grants) == 51


def test_tokens_kept_for_decodes_that_do_not_come_never_empty_a_step() -> None:
    wrong = queue("b", decoding=300)
    assert plan_tenants([queue("a", [candidate("a1")]), wrong], Limits(1, 100, 16, 10)).grants == {"a1": 1}


def test_what_does_not_fit_of_one_tenant_keeps_nobody_else_waiting() -> None:
    limits = Limits(budget_tokens=10_000, free_blocks=8, block_size=16, free_slots=100)
    too_long = [candidate(f"a{i:02}", i, todo_tokens=5000) for i in range(3 * MAX_PASSED_OVER)]
    plan = plan_tenants([queue("a", too_long), queue("b", [candidate("b1")], time=1.0)], limits)
    assert plan.grants == {"b1": 64}


FULL = Limits(budget_tokens=1000, free_blocks=0, block_size=16, free_slots=100)


def test_the_tenant_over_its_share_gives_way_whatever_the_ranks() -> None:
    """`b` has 90 of 100 blocks: its stream goes, which ranks above the newcomer's own lower one."""
    plan = plan_tenants(
        [
            queue("a", [candidate("a1", 5)], active=[victim("a2", 9, 10)], held=(10, 1)),
            queue("b", active=[victim("b2", 3, 30), victim("b1", 0, 60)], held=(90, 2)),
        ],
        FULL,
    )
    assert (plan.victims, plan.grants) == (["b2"], {"a1": 64})


def test_a_tenant_within_its_share_takes_from_one_that_is_over_and_ends_up_with_less() -> None:
    """`a` would have 24 of 100 blocks, within its half; `b` 20 after 70."""
    a = queue("a", [candidate("a1", 5)], active=[victim("a2", 9, 20)], held=(20, 1))
    b = queue("b", active=[victim("b2", 8, 60), victim("b1", 0, 20)], held=(80, 2))
    assert plan_tenants([a, b], FULL).victims == ["b2"]


def test_a_tenant_that_would_be_over_its_share_takes_only_from_who_keeps_more() -> None:
    """`a` would have 64 of 100 blocks."""
    a = queue("a", [candidate("a1", 5)], active=[victim("a2", 9, 60)], held=(60, 1))
    b = queue("b", active=[victim("b2", 8, 20), victim("b1", 0, 20)], held=(40, 2))
    assert plan_tenants([a, b], FULL).victims == ["a2"]


def test_a_tenants_only_stream_is_not_taken_for_being_large() -> None:
    plan = plan_tenants(
        [
            queue("a", [candidate("a1", 5)], active=[victim("a2", 9, 10)], held=(10, 1)),
            queue("b", active=[victim("b1", 0, 90)], held=(90, 1)),
        ],
        FULL,
    )
    assert plan.victims == ["a2"]


def test_the_tenant_over_its_share_takes_from_itself() -> None:
    b = queue("b", [candidate("b3", 0)], active=[victim("b2", 8, 30), victim("b1", 1, 60)], held=(90, 2))
    plan = plan_tenants([queue("a", parked=[victim("a1", 9, 10, parked=True)], held=(10, 1)), b], FULL)
    assert (plan.victims, plan.grants) == (["b2"], {"b3": 64})


def test_a_parked_stream_within_its_tenants_share_is_safe_from_others() -> None:
    """With one tenant, a parked stream gives way to any whole prompt."""
    parked = victim("a1", 9, 10, parked=True)
    newcomer, running = candidate("b2", 5), candidate("b1", 0, holds_slot=True, todo_tokens=1, held_blocks=90)
    b = queue("b", [newcomer], holders=[running], active=[victim("b1", 0, 90)], held=(90, 1))
    plan = plan_tenants([queue("a", parked=[parked], held=(10, 1)), b], Limits(1000, 1, 16, 100))
    assert (plan.victims, plan.grants) == ([], {"b1": 1})
    alone = plan_step([running], [newcomer], lambda idle: [parked] if idle else [], Limits(1000, 1, 16, 100))
    assert alone.victims == ["a1"]


def test_a_whole_prompt_that_outgrows_its_tenant_takes_from_idle_streams_of_others() -> None:
    """It would wait for another tenant's producers otherwise, as long as steps are not empty."""
    parked = victim("a1", 9, 10, parked=True)
    decode = candidate("a2", 0, holds_slot=True, todo_tokens=1, computed_tokens=10, held_blocks=1)
    a = queue("a", holders=[decode], active=[victim("a2", 0, 1)], parked=[parked], held=(11, 2))
    for free_blocks, victims in ((8, []), (7, ["a1"])):
        # It wants 10 blocks, and another stream of its tenant holds 2.
        b = queue("b", [candidate("b1", todo_tokens=160)], held=(2, 0), weight=0.001)
        assert plan_tenants([a, b], Limits(1000, free_blocks, 16, 100)).victims == victims


def test_a_tenant_with_nothing_takes_from_one_that_keeps_something() -> None:
    a = queue("a", active=[victim("a2", 9, 50), victim("a1", 0, 50)], held=(100, 2), weight=1000.0)
    light = queue("b", [candidate("b1", 5)], weight=0.001)
    assert plan_tenants([a, light], FULL).victims == ["a2"]
    decode = candidate("a1", 0, holds_slot=True, todo_tokens=1, computed_tokens=10, held_blocks=100)
    only = queue("a", holders=[decode], active=[victim("a1", 0, 100)], held=(100, 1), weight=1000.0)
    assert plan_tenants([only, light], FULL).victims == []


def test_an_overdue_stream_of_a_tenant_with_nothing_takes_by_rank() -> None:
    decode = candidate("a1", 9, holds_slot=True, todo_tokens=1, computed_tokens=10, held_blocks=100)
    only = queue("a", holders=[decode], active=[victim("a1", 9, 100)], held=(100, 1), time=1.0)
    assert plan_tenants([only, queue("b", [candidate("b1", 0)])], FULL).victims == []
    overdue = queue("b", [candidate("b1", 0, overdue=True)])
    assert plan_tenants([only, overdue], FULL).victims == ["a1"]


def test_slots_count_as_memory_does() -> None:
    limits = Limits(budget_tokens=1000, free_blocks=1000, block_size=16, free_slots=0, parked_slots=9)
    parked = [victim(f"a{i}", i, 1, parked=True) for i in reversed(range(9))]
    decode = candidate("b1", 0, holds_slot=True, todo_tokens=1, computed_tokens=10, held_blocks=1)
    a, b = queue("a", parked=parked, held=(9, 9)), queue("b", [candidate("b2", 1)], holders=[decode], held=(1, 1))
    plan = plan_tenants([a, b], limits)
    assert (plan.victims, plan.slot_victims, plan.grants) == (["a8"], {"a8"}, {"b1": 1, "b2": 64})
    few = queue("a", parked=parked[:2], held=(2, 2))
    many = queue("b", [candidate("b2", 1)], holders=[decode], held=(9, 8))
    assert plan_tenants([few, many], limits).victims == []


# ---------------------------------------------------------------- any state
@st.composite
def tenants(draw: st.DrawFn) -> tuple[list[Callable[[], TenantQueue]], Limits, dict[str, tuple[str, int, bool]]]:
    """Two or three tenants with streams in any state; and for each stream its tenant, blocks and whether it is idle."""
    names = draw(st.sampled_from(("ab", "abc")))
    about: dict[str, tuple[str, int, bool]] = {}
    makers: list[Callable[[], TenantQueue]] = []
    slots = 0
    ranks = iter(draw(st.permutations(range(40))))
    for tenant in names:
        holders, newcomers, active, idle = [], [], [], []
        held = used = 0
        for number in range(draw(st.integers(0, 4))):
            name, rank = f"{tenant}{number}", next(ranks)
            state = draw(st.sampled_from(("running", "parked", "waiting")))
            blocks = 0 if state == "waiting" else draw(st.integers(1, 20))
            complete, todo = state != "parked" and draw(st.booleans()), draw(st.integers(1, 200))
            one = candidate(
                name,
                rank,
                complete=complete,
                fresh=complete or draw(st.booleans()),
                holds_slot=state == "running",
                todo_tokens=todo,
                computed_tokens=blocks * 16,
                held_blocks=blocks,
            )
            about[name] = (tenant, blocks, state == "parked" or not one.fresh)
            held += blocks
            used += state != "waiting"
            if state == "waiting":
                newcomers.append(one)
                continue
            repeats = state == "running" and not one.fresh
            taken = victim(name, rank, blocks, parked=state == "parked", repeats=repeats)
            (idle if state == "parked" or repeats else active).append(taken)
            if state == "running":
                holders.append(one)
        slots += used
        weight, time = draw(st.sampled_from((1.0, 3.0, 0.25))), draw(st.sampled_from((0.0, 10.0, 200.0)))

        def make(
            parts: tuple[list[Candidate], list[Candidate], list[Victim], list[Victim]] = (
                holders,
                newcomers,
                active,
                idle,
            ),
            rest: tuple[str, float, float, tuple[int, int]] = (tenant, weight, time, (held, used)),
        ) -> TenantQueue:
            return queue(
                rest[0],
                sorted(parts[1], key=by_rank),
                holders=sorted(parts[0], key=by_rank),
                active=sorted(parts[2], key=by_rank, reverse=True),
                parked=sorted(parts[3], key=by_rank, reverse=True),
                weight=rest[1],
                time=rest[2],
                held=rest[3],
            )

        makers.append(make)
    limits = Limits(
        budget_tokens=draw(st.integers(1, 300)),
        free_blocks=draw(st.integers(0, 20)),
        block_size=16,
        free_slots=draw(st.integers(0, 4)),
        parked_slots=sum(idle for _, _, idle in about.values()),
    )
    return makers, limits, about


def plan_of(makers: list[Callable[[], TenantQueue]], limits: Limits) -> Plan:
    return plan_tenants([make() for make in makers], limits)


@given(tenants())
@settings(max_examples=300)
def test_every_plan_fits_and_takes_from_no_tenant_all_that_it_works_on(
    state: tuple[list[Callable[[], TenantQueue]], Limits, dict[str, tuple[str, int, bool]]],
) -> None:
    makers, limits, about = state
    plan = plan_of(makers, limits)
    queues = {q.tenant: q for q in (make() for make in makers)}
    candidates = {c.req_id: c for q in queues.values() for c in (*q.holders, *q.newcomers)}
    assert sum(plan.grants.values()) <= limits.budget_tokens
    assert not set(plan.grants) & set(plan.victims)
    assert len(plan.victims) == len(set(plan.victims))
    taken = dict.fromkeys(plan.grants, 0)
    for req_id, tokens in plan.grants.items():
        one = candidates[req_id]
        taken[req_id] = -(-(one.computed_tokens + tokens) // 16) - one.held_blocks
    freed = sum(about[req_id][1] for req_id in plan.victims)
    assert sum(taken.values()) <= limits.free_blocks + freed
    if len(plan.grants) < 2:
        return
    # The exceptions of an empty step grant one request; what is idle may go for a prompt that has no room otherwise.
    for req_id in plan.victims:
        tenant, _, idle = about[req_id]
        kept = sum(
            blocks + taken.get(other, 0)
            for other, (whose, blocks, _) in about.items()
            if whose == tenant and other not in plan.victims
        )
        assert idle or kept > 0
