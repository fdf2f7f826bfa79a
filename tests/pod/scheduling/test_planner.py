"""Plans on random scheduler states, checked against an independent account of what they do, and single rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from stream2llm_pod.scheduling.planner import MAX_PASSED_OVER, Plan, plan_step
from stream2llm_pod.scheduling.views import Candidate, Limits, Victim


@dataclass(frozen=True)
class Stream:
    """One request; `position` is its rank. `state` is running, parked, holding (KV but no slot) or waiting."""

    position: int
    state: str
    complete: bool
    fresh: bool
    todo_tokens: int
    computed_tokens: int
    restored_tokens: int = 0
    protected: bool = False

    @property
    def req_id(self) -> str:
        return f"r{self.position:03}"

    @property
    def rank(self) -> tuple[int, str]:
        return (self.position, self.req_id)

    @property
    def holds_slot(self) -> bool:
        return self.state in ("running", "parked")

    @property
    def useful(self) -> bool:
        return self.complete or self.fresh

    @property
    def repeats(self) -> bool:
        return self.state in ("running", "holding") and not self.useful

    @property
    def idle(self) -> bool:
        return self.state == "parked" or self.repeats


@dataclass(frozen=True)
class State:
    streams: tuple[Stream, ...]
    block_size: int
    spare_blocks: int
    budget_tokens: int
    max_slots: int

    def held_blocks(self, stream: Stream) -> int:
        return -(-stream.computed_tokens // self.block_size)

    @property
    def free_slots(self) -> int:
        return self.max_slots - sum(stream.holds_slot for stream in self.streams)

    def by_id(self) -> dict[str, Stream]:
        return {stream.req_id: stream for stream in self.streams}

    def plan(self) -> Plan:
        def candidate(stream: Stream) -> Candidate:
            return Candidate(
                stream.req_id,
                stream.rank,
                stream.complete,
                stream.state == "running",
                stream.todo_tokens,
                stream.computed_tokens,
                self.held_blocks(stream),
                stream.restored_tokens,
                fresh=stream.fresh or stream.complete,
            )

        def victims(idle: bool) -> list[Victim]:
            return [
                Victim(
                    s.req_id,
                    s.rank,
                    s.state == "parked",
                    self.held_blocks(s),
                    s.holds_slot,
                    s.protected and s.state != "parked",
                    repeats=s.repeats,
                )
                for s in reversed(self.streams)
                if self.held_blocks(s) and s.idle == idle
            ]

        limits = Limits(
            self.budget_tokens,
            self.spare_blocks,
            self.block_size,
            self.free_slots,
            sum(stream.state == "parked" for stream in self.streams),
        )
        return plan_step(
            [candidate(s) for s in self.streams if s.state == "running" and s.todo_tokens],
            [candidate(s) for s in self.streams if s.state in ("holding", "waiting") and s.todo_tokens],
            victims,
            limits,
        )


@st.composite
def states(draw: st.DrawFn) -> State:
    block_size = draw(st.sampled_from((1, 4, 16)))
    streams = []
    for position in range(draw(st.integers(1, 12))):
        state = draw(st.sampled_from(("running", "parked", "holding", "waiting")))
        computed = 0 if state == "waiting" else draw(st.integers(1, 100))
        todo = 0 if state == "parked" else draw(st.integers(0 if state == "running" else 1, 120))
        restored = draw(st.integers(0, max(todo - 1, 0))) if state == "waiting" else 0
        streams.append(
            Stream(
                position,
                state,
                complete=state != "parked" and draw(st.booleans()),
                fresh=draw(st.booleans()),
                todo_tokens=todo,
                computed_tokens=computed,
                restored_tokens=restored // block_size * block_size,
                protected=draw(st.booleans()),
            )
        )
    holding_slots = sum(stream.holds_slot for stream in streams)
    return State(
        tuple(streams),
        block_size,
        spare_blocks=draw(st.integers(0, 30)),
        budget_tokens=draw(st.integers(1, 200)),
        max_slots=max(1, holding_slots + draw(st.integers(0, 4))),
    )


def blocks_after(state: State, stream: Stream, tokens: int) -> int:
    """Blocks the request holds once the plan has run."""
    return -(-(stream.computed_tokens + stream.restored_tokens + tokens) // state.block_size)


@given(states())
@settings(max_examples=300)
def test_every_plan_fits_budget_blocks_and_slots(state: State) -> None:
    plan, by_id = state.plan(), state.by_id()
    assert sum(plan.grants.values()) <= state.budget_tokens
    assert all(tokens > 0 for tokens in plan.grants.values())
    assert not set(plan.victims) & set(plan.grants)
    assert len(plan.victims) == len(set(plan.victims))
    freed = sum(state.held_blocks(by_id[v]) for v in plan.victims)
    taken = sum(blocks_after(state, by_id[r], n) - state.held_blocks(by_id[r]) for r, n in plan.grants.items())
    assert taken <= state.spare_blocks + freed
    freed_slots = sum(by_id[v].holds_slot for v in plan.victims)
    newcomers = sum(by_id[r].state != "running" for r in plan.grants)
    assert newcomers <= state.free_slots + freed_slots


@given(states())
@settings(max_examples=300)
def test_nobody_is_granted_more_than_it_can_compute(state: State) -> None:
    by_id = state.by_id()
    for req_id, tokens in state.plan().grants.items():
        assert tokens <= by_id[req_id].todo_tokens - by_id[req_id].restored_tokens


@given(states())
@settings(max_examples=300)
def test_a_victim_ranks_below_somebody_granted_or_is_idle(state: State) -> None:
    plan, by_id = state.plan(), state.by_id()
    if not plan.victims:
        return
    assert plan.grants, "nobody is preempted for nothing"
    best = min(by_id[req_id].position for req_id in plan.grants)
    for req_id in plan.victims:
        victim = by_id[req_id]
        assert victim.position > best or victim.idle
        if victim.position < best or not victim.idle:
            assert any(by_id[r].useful for r in plan.grants)


@given(states())
@settings(max_examples=300)
def test_a_protected_victim_is_taken_only_by_a_step_that_had_nothing_else(state: State) -> None:
    plan, by_id = state.plan(), state.by_id()
    if any(by_id[v].protected and by_id[v].state != "parked" for v in plan.victims):
        assert len(plan.grants) == 1


@given(states())
@settings(max_examples=300)
def test_the_plan_is_work_conserving(state: State) -> None:
    """A step stays empty only if no candidate could get a slot and one block by the rules."""
    plan = state.plan()
    if plan.grants:
        return
    for stream in state.streams:
        if stream.todo_tokens <= stream.restored_tokens or stream.state == "parked":
            continue
        takeable = [
            v
            for v in state.streams
            if v is not stream
            and state.held_blocks(v)
            and (stream.useful or (stream.state == "running" and v.idle))
            and (v.position > stream.position or (v.idle and stream.useful))
        ]
        has_slot = stream.state == "running" or state.free_slots > 0
        needed = blocks_after(state, stream, 1) - state.held_blocks(stream)
        if has_slot:
            assert needed > state.spare_blocks, "one token would fit without anybody's leave"
        whole = blocks_after(state, stream, min(stream.todo_tokens - stream.restored_tokens, state.budget_tokens))
        available = state.spare_blocks + sum(state.held_blocks(v) for v in takeable)
        if has_slot or any(v.state == "parked" for v in takeable):
            assert whole - state.held_blocks(stream) > available


def candidate(name: str, rank: int, **changes: object) -> Candidate:
    values: dict[str, object] = {
        "complete": True,
        "holds_slot": False,
        "todo_tokens": 64,
        "computed_tokens": 0,
        "held_blocks": 0,
    }
    return Candidate(name, (rank, name), **(values | changes))  # type: ignore[arg-type]


def test_what_lies_on_the_host_waits_for_its_next_chunk() -> None:
    """Regression: it was copied back into any free memory, to compute one token, and pushed out again by the next."""
    limits = Limits(128, 100, 16, 8)
    swapped = candidate("swapped", 1, complete=False, todo_tokens=65, restored_tokens=64, on_host=True)
    assert plan_step([], [swapped], no_victims, limits).grants == {}
    recomputed = candidate("recomputed", 1, complete=False, todo_tokens=65)
    assert plan_step([], [recomputed], no_victims, limits).grants == {"recomputed": 65}
    for changes in ({"fresh": True}, {"fresh": True, "complete": True}):
        back = candidate("back", 1, **{"complete": False, **changes}, todo_tokens=65, restored_tokens=64, on_host=True)
        assert plan_step([], [back], no_victims, limits).grants == {"back": 1}


def no_victims(parked: bool) -> list[Victim]:
    return []


def test_grants_follow_rank_until_the_budget_is_spent() -> None:
    limits = Limits(budget_tokens=100, free_blocks=100, block_size=16, free_slots=10)
    plan = plan_step(
        [candidate("running", 1, holds_slot=True, computed_tokens=16, held_blocks=1)],
        [candidate("first", 0), candidate("last", 2)],
        no_victims,
        limits,
    )
    assert plan.grants == {"first": 64, "running": 36}


def test_a_newcomer_is_admitted_only_if_its_whole_prompt_fits() -> None:
    limits = Limits(budget_tokens=32, free_blocks=4, block_size=16, free_slots=10)
    plan = plan_step(
        [], [candidate("long", 0, todo_tokens=80), candidate("short", 1, todo_tokens=32)], no_victims, limits
    )
    assert plan.grants == {"short": 32}


def finishing_alone(*, holders: list[Candidate], newcomers: list[Candidate], asked: bool = True) -> Plan:
    limits = Limits(budget_tokens=200, free_blocks=100, block_size=16, free_slots=10, finishes_alone=asked)
    return plan_step(holders, newcomers, no_victims, limits)


def test_a_step_that_computes_a_whole_prompt_leaves_out_open_ones_where_the_policy_asks_for_it() -> None:
    whole = candidate("whole", 0, finishing=True)
    growing = candidate("open", 1, complete=False, fresh=True, holds_slot=True, computed_tokens=16, held_blocks=1)
    plan = finishing_alone(holders=[growing], newcomers=[whole])
    assert (plan.grants, plan.held_back) == ({"whole": 64}, True)
    plan = finishing_alone(holders=[growing], newcomers=[whole], asked=False)
    assert (plan.grants, plan.held_back) == ({"whole": 64, "open": 64}, False)


def test_open_prompts_are_not_left_out_for_one_that_generates_or_has_no_room() -> None:
    decoding = candidate("decoding", 0, holds_slot=True, todo_tokens=1, computed_tokens=64, held_blocks=5)
    too_long = candidate("too long", 1, todo_tokens=5000, finishing=True)
    growing = candidate("open", 2, complete=False, fresh=True, holds_slot=True, computed_tokens=16, held_blocks=1)
    plan = finishing_alone(holders=[decoding, growing], newcomers=[too_long])
    assert (plan.grants, plan.held_back) == ({"decoding": 1, "open": 64}, False)


def test_whole_prompts_share_a_step_also_where_open_ones_are_left_out() -> None:
    plan = finishing_alone(
        holders=[], newcomers=[candidate("first", 0, finishing=True), candidate("second", 1, finishing=True)]
    )
    assert (plan.grants, plan.held_back) == ({"first": 64, "second": 64}, False)


def test_an_empty_step_admits_what_fits() -> None:
    limits = Limits(budget_tokens=32, free_blocks=4, block_size=16, free_slots=10)
    assert plan_step([], [candidate("long", 0, todo_tokens=80)], no_victims, limits).grants == {"long": 32}


def parked_victim(parked: bool) -> list[Victim]:
    return [Victim("parked", (0, "parked"), True, 8, True)] if parked else []


def test_a_whole_prompt_may_take_from_a_parked_stream_of_higher_rank() -> None:
    limits = Limits(budget_tokens=64, free_blocks=0, block_size=16, free_slots=1, parked_slots=1)
    plan = plan_step([], [candidate("whole", 5)], parked_victim, limits)
    assert plan.victims == ["parked"]
    assert plan.grants == {"whole": 64}


def test_repeated_work_never_takes_from_a_parked_stream_of_higher_rank() -> None:
    limits = Limits(budget_tokens=64, free_blocks=0, block_size=16, free_slots=1, parked_slots=1)
    again = candidate("again", 5, complete=False, fresh=False)
    new = candidate("new", 6, complete=False, fresh=True)
    assert plan_step([], [again], parked_victim, limits).grants == {}
    assert plan_step([], [again, new], parked_victim, limits).grants == {"new": 64}


def test_repeated_work_of_an_open_stream_pushes_nobody_out() -> None:
    limits = Limits(budget_tokens=64, free_blocks=0, block_size=16, free_slots=1)
    again = candidate("again", 0, complete=False, fresh=False)
    lower = Victim("lower", (9, "lower"), False, 8, True)
    assert plan_step([], [again], lambda parked: [] if parked else [lower], limits).victims == []
    whole = candidate("whole", 0)
    assert plan_step([], [whole], lambda parked: [] if parked else [lower], limits).victims == ["lower"]


def test_repeated_work_under_way_takes_from_idle_streams_only() -> None:
    """Once a livelock: two open streams took one block from each other in turn, and neither computed its new chunk."""
    limits = Limits(budget_tokens=64, free_blocks=0, block_size=16, free_slots=0)
    again = candidate("again", 0, complete=False, holds_slot=True, computed_tokens=16, held_blocks=1)
    new_work = Victim("lower", (9, "lower"), False, 8, True)
    assert plan_step([again], [], lambda idle: [] if idle else [new_work], limits) == Plan(considered=1)
    repeats = Victim("lower", (9, "lower"), False, 8, True, repeats=True)
    assert plan_step([again], [], lambda idle: [repeats] if idle else [], limits).victims == ["lower"]


def test_a_stream_that_repeats_gives_way_to_whole_prompts_and_in_an_empty_step_to_new_chunks() -> None:
    limits = Limits(budget_tokens=64, free_blocks=0, block_size=16, free_slots=1)

    def repeats(idle: bool) -> list[Victim]:
        return [Victim("higher", (0, "higher"), False, 8, True, repeats=True)] if idle else []

    for changes in ({"complete": True}, {"complete": False, "fresh": True}):
        plan = plan_step([], [candidate("newcomer", 5, **changes)], repeats, limits)
        assert (plan.grants, plan.victims) == ({"newcomer": 64}, ["higher"])
    again = candidate("newcomer", 5, complete=False, fresh=False)
    assert plan_step([], [again], repeats, limits).victims == []


def test_an_empty_step_takes_from_the_parked_before_it_takes_from_the_protected() -> None:
    limits = Limits(budget_tokens=64, free_blocks=0, block_size=16, free_slots=1, parked_slots=1)
    new = candidate("new", 5, complete=False, fresh=True)
    resumed = Victim("resumed", (9, "resumed"), False, 8, True, protected=True)

    def victims(parked: bool) -> list[Victim]:
        return parked_victim(True) if parked else [resumed]

    assert plan_step([], [new], victims, limits).victims == ["parked"]
    assert plan_step([], [new], lambda parked: [] if parked else [resumed], limits).victims == ["resumed"]


def test_a_full_house_of_parked_streams_gives_up_a_slot() -> None:
    limits = Limits(budget_tokens=64, free_blocks=50, block_size=16, free_slots=0, parked_slots=1)
    plan = plan_step([], [candidate("whole", 5)], parked_victim, limits)
    assert plan.victims == ["parked"]
    assert plan.slot_victims == {"parked"}
    assert plan.grants == {"whole": 64}


def test_no_exception_for_an_empty_step_while_something_is_in_flight() -> None:
    limits = Limits(budget_tokens=32, free_blocks=4, block_size=16, free_slots=10)
    plan = plan_step([], [candidate("long", 0, todo_tokens=80)], no_victims, limits, may_resort=lambda: False)
    assert plan.grants == {}


def test_the_watermark_stays_free_when_a_request_is_admitted() -> None:
    limits = Limits(budget_tokens=512, free_blocks=8, block_size=16, free_slots=10, watermark_blocks=2)
    newcomers = [candidate("a", 0, todo_tokens=96), candidate("b", 1, todo_tokens=16)]
    assert plan_step([], newcomers, no_victims, limits).grants == {"a": 96}


def test_newcomers_are_made_only_while_there_are_slots() -> None:
    made: list[str] = []

    def newcomers() -> Iterator[Candidate]:
        for position in range(1000):
            made.append(str(position))
            yield candidate(f"n{position:04}", position)

    limits = Limits(budget_tokens=10_000, free_blocks=10_000, block_size=16, free_slots=3)
    plan = plan_step([], newcomers(), no_victims, limits)
    assert len(plan.grants) == 3
    assert len(made) <= 4


def test_few_candidates_are_passed_over_once_something_runs() -> None:
    made: list[str] = []

    def newcomers() -> Iterator[Candidate]:
        yield candidate("fits", 0, todo_tokens=16)
        for position in range(1, 1000):
            made.append(str(position))
            yield candidate(f"n{position:04}", position, todo_tokens=10_000)

    limits = Limits(budget_tokens=100_000, free_blocks=10, block_size=16, free_slots=100)
    plan = plan_step([], newcomers(), no_victims, limits)
    assert plan.grants == {"fits": 16}
    assert len(made) == MAX_PASSED_OVER
