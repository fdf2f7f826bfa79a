from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm_pod.scheduling.policies import POLICIES, Auto, Policy, make_policy
from stream2llm_pod.scheduling.views import StreamView


def view(name: str, **changes: object) -> StreamView:
    values: dict[str, object] = {
        "open": False,
        "arrival_s": 0.0,
        "last_chunk_s": 0.0,
        "runnable_since_s": 0.0,
        "prompt_tokens": 100,
        "computed_tokens": 0,
    }
    return StreamView(name, **(values | changes))  # type: ignore[arg-type]


def order(policy: Policy, views: list[StreamView], now_s: float = 1.0) -> list[str]:
    return [v.req_id for v in sorted(views, key=lambda v: policy.key(v, now_s))]


def test_the_registry_names_every_policy() -> None:
    assert list(POLICIES) == ["default", "fcfs", "lcas", "lcas-oldest", "mcps", "srpf", "auto"]
    assert all(make_policy(name).name == name for name in POLICIES)


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'lifo' is not known; choose one of default, fcfs"):
        make_policy("lifo")


def test_fcfs_serves_whole_prompts_first_then_by_arrival() -> None:
    views = [view("open", open=True, arrival_s=0), view("late", arrival_s=2), view("early", arrival_s=1)]
    assert order(make_policy("fcfs"), views) == ["early", "late", "open"]


def test_lcas_serves_the_newest_chunk_first_and_the_artifact_the_oldest() -> None:
    views = [view("old", last_chunk_s=1), view("new", last_chunk_s=5), view("mid", last_chunk_s=3)]
    assert order(make_policy("lcas"), views) == ["new", "mid", "old"]
    assert order(make_policy("lcas-oldest"), views) == ["old", "mid", "new"]


def test_lcas_alone_has_a_minimum_residency() -> None:
    assert {name for name in POLICIES if make_policy(name).min_residency_s > 0} == {"lcas"}


def test_mcps_serves_the_most_prefilled_first_and_decoding_changes_nothing() -> None:
    mcps = make_policy("mcps")
    assert order(mcps, [view("little", computed_tokens=10), view("much", computed_tokens=90)]) == ["much", "little"]
    assert mcps.key(view("a", computed_tokens=100), 0) == mcps.key(view("a", computed_tokens=170), 0)


def test_srpf_serves_the_shortest_remaining_prefill_first() -> None:
    views = [
        view("long", computed_tokens=10),
        view("short", computed_tokens=90),
        view("open", open=True, prompt_tokens=1),
    ]
    assert order(make_policy("srpf"), views) == ["short", "long", "open"]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 100_000), st.floats(0, 59)), max_size=20))
def test_ageing_puts_whoever_waited_too_long_before_all_others(others: list[tuple[bool, int, float]]) -> None:
    srpf, now_s = make_policy("srpf", max_wait_s=60), 100.0
    starving = view("starving", open=True, prompt_tokens=1_000_000, runnable_since_s=now_s - 60)
    views = [
        view(f"o{i}", open=is_open, prompt_tokens=tokens, runnable_since_s=now_s - waited_s)
        for i, (is_open, tokens, waited_s) in enumerate(others)
    ]
    assert order(srpf, [*views, starving], now_s)[0] == "starving"


def test_the_oldest_of_the_aged_goes_first() -> None:
    srpf = make_policy("srpf", max_wait_s=10)
    views = [view("younger", runnable_since_s=5), view("older", runnable_since_s=1, prompt_tokens=10_000)]
    assert order(srpf, views, now_s=100) == ["older", "younger"]


def test_a_policy_says_when_its_key_will_change() -> None:
    srpf = make_policy("srpf", max_wait_s=10)
    assert srpf.changes_at_s(view("a", runnable_since_s=5), 7) == 15
    assert srpf.changes_at_s(view("a", runnable_since_s=5), 15) is None
    assert make_policy("fcfs").changes_at_s(view("a"), 7) is None


@pytest.mark.parametrize("name", ["srpf", "auto"])
@pytest.mark.parametrize("bound_s", [0, -1, float("nan")])
def test_an_ageing_bound_that_is_no_positive_number_is_refused(name: str, bound_s: float) -> None:
    with pytest.raises(ValueError, match="max_wait_s must be above 0"):
        make_policy(name, bound_s)


def test_auto_serves_the_shortest_of_those_that_became_whole_together() -> None:
    views = [
        view("long", computed_tokens=10),
        view("short", computed_tokens=90),
        view("open", open=True, prompt_tokens=1),
    ]
    assert order(make_policy("auto"), views) == ["short", "long", "open"]


def test_auto_serves_open_prompts_by_arrival_so_that_the_youngest_gives_way_first() -> None:
    auto = make_policy("auto")
    old = view("old", open=True, arrival_s=1, last_chunk_s=9, prompt_tokens=9000)
    young = view("young", open=True, arrival_s=2, last_chunk_s=5, prompt_tokens=10)
    assert order(auto, [young, old]) == ["old", "young"]
    # No equals, among whom the cheapest would give way.
    assert auto.level(auto.key(old, 10)) != auto.level(auto.key(young, 10))


def test_auto_lets_a_second_of_waiting_make_up_for_a_fixed_number_of_tokens() -> None:
    credit_tokens = int(Auto.credit_tokens_per_s)
    waited = view("waited", prompt_tokens=2 * credit_tokens, last_chunk_s=1.0)
    assert order(make_policy("auto"), [waited, view("new", prompt_tokens=credit_tokens - 1, last_chunk_s=2.0)]) == [
        "new",
        "waited",
    ]
    assert order(make_policy("auto"), [waited, view("new", prompt_tokens=credit_tokens + 1, last_chunk_s=2.0)]) == [
        "waited",
        "new",
    ]


@given(
    st.integers(1, 131_072),
    st.integers(1, 131_072),
    st.floats(0, 1000),
    st.floats(0.001, 100),
    st.floats(0.5, 600),
    st.booleans(),
)
def test_auto_puts_nobody_before_a_prompt_who_became_whole_much_later(
    tokens: int, newer_tokens: int, whole_s: float, after_s: float, max_wait_s: float, is_open: bool
) -> None:
    policy = make_policy("auto", max_wait_s)
    bound_s = min(tokens / Auto.credit_tokens_per_s, max_wait_s)
    waiting = view("waiting", prompt_tokens=tokens, last_chunk_s=whole_s)
    newer = view("newer", open=is_open, prompt_tokens=newer_tokens, last_chunk_s=whole_s + bound_s + after_s)
    assert order(policy, [newer, waiting], now_s=whole_s + 1e4) == ["waiting", "newer"]


@pytest.mark.parametrize("name", list(POLICIES))
@given(
    views=st.lists(
        st.builds(
            StreamView,
            st.uuids().map(str),
            st.booleans(),
            st.floats(0, 100),
            st.floats(0, 100),
            st.floats(0, 100),
            st.integers(1, 1000),
            st.integers(0, 1000),
        ),
        unique_by=lambda v: v.req_id,
        max_size=10,
    )
)
def test_every_key_is_unique_comparable_and_ends_with_the_id(name: str, views: list[StreamView]) -> None:
    policy = make_policy(name)
    keys = [policy.key(v, 50.0) for v in views]
    assert len(set(keys)) == len(views)
    assert [key[-1] for key in keys] == [v.req_id for v in views]
    sorted(keys)
