"""The schedulers of the paper's artifact, modelled: what they do with memory, and that they lose nobody."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm_bench.simulating import artifact, planning
from stream2llm_bench.simulating.artifact import ARTIFACT, ARTIFACT_DEFAULT, order_of
from stream2llm_bench.simulating.engine import Setting
from stream2llm_bench.simulating.hardware import BUDGETS, Hardware
from stream2llm_bench.workloads.scenarios import plain
from stream2llm_bench.workloads.streams import Message, Piece, Stream

HARDWARE = Hardware("test", 8.0, 10.0, 0.0, 1_200_000, 1.0, 1.0, 2_400_000)
SETTING = Setting(HARDWARE, policy=ARTIFACT_DEFAULT, budget_tokens=1000)


def stream(name: str, starts_s: float, *messages: tuple[float, int], replaces: bool = False) -> Stream:
    """(seconds after the start, tokens) a message; each has an identity of its own."""
    made = tuple(
        Message(after_s, (Piece(hash((name, number)), tokens),), replaces and number > 0)
        for number, (after_s, tokens) in enumerate(messages)
    )
    return Stream(name, made, starts_s)


@pytest.mark.parametrize("policy", ["artifact-fcfs", "artifact-lcas", "artifact-mcps"])
@pytest.mark.parametrize("workload", ["crawler", "anns"])
def test_with_room_for_all_they_do_what_our_scheduler_does_in_their_order(policy: str, workload: str) -> None:
    """But for who goes first of those that arrived during one step."""
    streams = plain(workload, 4.0, 300).draw(3)
    setting = Setting(replace(HARDWARE, kv_tokens=4_000_000), policy=policy, budget_tokens=BUDGETS[workload])
    theirs, ours = artifact.run(streams, setting), planning.run(streams, replace(setting, policy=order_of(policy)))
    assert ours is not None
    assert theirs.preemptions == {"recompute": 0, "swap": 0}
    assert theirs.steps == pytest.approx(ours.steps, rel=0.01)
    for percent in (50, 95):
        assert np.percentile(theirs.ttft_s, percent) == pytest.approx(np.percentile(ours.ttft_s, percent), rel=0.02)


def test_one_prompt_takes_its_steps() -> None:
    outcome = artifact.run([stream("a", 1.0, (0.0, 500), (2.0, 1500))], SETTING)
    # The first chunk while the second is under way; then two steps, of 1,000 and of 500 tokens.
    assert outcome.ttft_s == [pytest.approx((8 + 10 + 8 + 5) / 1e3)]
    assert outcome.steps == 3


def test_an_idle_stream_in_front_is_spared_and_the_last_admitted_gives_way_to_itself() -> None:
    """Default streaming stands still behind it: a whole prompt waits until an idle stream has ended."""
    idle = stream("idle", 0.0, (0.0, 900), (30.0, 10))
    whole = stream("whole", 1.0, (0.0, 500), (1.0, 600))
    behind = stream("behind", 2.5, (0.0, 100))
    setting = replace(SETTING, kv_tokens=1600)
    waits = artifact.run([idle, whole, behind], setting)
    # "whole" is at its end only when "idle" is, 30 s after the beginning; "behind" came 27.5 s before that.
    assert min(waits.ttft_s[1:]) > 27
    assert waits.preemptions["recompute"] > 0
    gives_way = artifact.run([idle, whole, behind], replace(setting, policy="artifact-fcfs"))
    assert max(gives_way.ttft_s[1:]) < 0.1
    assert gives_way.recomputed_tokens == 900


def test_the_kind_of_preemption_goes_by_what_is_computed_now_not_by_what_is_lost() -> None:
    """A victim of 30,000 tokens, for which copying is ten times cheaper than computing, is computed again."""
    hardware = replace(HARDWARE, copy_ms=10.0)
    idle = stream("idle", 0.0, (0.0, 30_000), (60.0, 10))
    small = stream("small", 20.0, (0.0, 640))
    setting = replace(SETTING, hardware=hardware, policy="artifact-fcfs", preemption="cost", kv_tokens=30_400)
    # 640 tokens: 20 + 1.28 ms out and in, 8 + 6.4 ms to compute.
    assert artifact.run([idle, small], setting).preemptions == {"recompute": 1, "swap": 0}
    large = stream("large", 20.0, (0.0, 2_000))
    # In steps of 2,000: 24 ms of copies, 28 ms to compute.
    assert artifact.run([idle, large], replace(setting, budget_tokens=2_000)).preemptions == {"recompute": 0, "swap": 1}


def test_a_swapped_stream_comes_back_without_computing_again() -> None:
    idle = stream("idle", 0.0, (0.0, 1000), (30.0, 10))
    other = stream("other", 10.0, (0.0, 1000))
    setting = replace(SETTING, policy="artifact-fcfs", preemption="swap", kv_tokens=1600)
    outcome = artifact.run([idle, other], setting)
    assert outcome.preemptions == {"recompute": 0, "swap": 1}
    # A step of 1,000 tokens and the copy out, 2 ms; a step of 10 and the copy in.
    assert outcome.ttft_s == [pytest.approx((8 + 0.1 + 2) / 1e3, rel=1e-3), pytest.approx((8 + 10 + 2) / 1e3, rel=1e-3)]


def test_an_update_keeps_what_it_shares() -> None:
    first = Message(0.0, (Piece(1, 400), Piece(2, 400)))
    second = Message(5.0, (Piece(1, 400), Piece(3, 300)), replaces=True)
    outcome = artifact.run([Stream("a", (first, second))], SETTING)
    assert outcome.ttft_s == [pytest.approx((8 + 3) / 1e3)]
    assert outcome.invalidated_tokens == 400


def test_what_it_cannot_run_is_told() -> None:
    with pytest.raises(ValueError, match="'fcfs' is no scheduler of the artifact; those are artifact-default"):
        artifact.run([stream("a", 0.0, (0.0, 5))], replace(SETTING, policy="fcfs"))
    two = [stream("a", 0.0, (0.0, 5)), replace(stream("b", 0.0, (0.0, 5)), tenant="other")]
    with pytest.raises(ValueError, match="know no tenants"):
        artifact.run(two, SETTING)


@pytest.mark.parametrize("policy", ARTIFACT)
def test_a_prompt_that_memory_cannot_hold_with_its_reserve_is_told_at_once(policy: str) -> None:
    """It would be computed anew for ever, or never."""
    setting = replace(SETTING, policy=policy)
    prompt = [stream("a", 0.0, (0.0, 3000))]
    for kv_tokens, holds in ((3056, 2992), (5, None), (9_000_000, None)):
        message = f"the longest prompt has 3000 tokens, and KV memory or the model hold {holds}"
        if holds is None:
            message = f"KV memory must be from 16 to 4000000 tokens, not {kv_tokens}"
        with pytest.raises(ValueError, match=message):
            artifact.run(prompt, replace(setting, kv_tokens=kv_tokens))
    # 188 blocks and four more.
    assert len(artifact.run(prompt, replace(setting, kv_tokens=3080)).ttft_s) == 1


def test_a_step_that_only_preempted_is_followed_at_once() -> None:
    """The default's last request takes from itself, and the next step admits it again without waiting for news."""
    first = stream("first", 0.0, (0.0, 3000), (10.0, 16))
    second = stream("second", 0.5, (0.0, 3000), (1.0, 400))
    behind = stream("behind", 1.6, (0.0, 100))
    setting = replace(SETTING, budget_tokens=2048, kv_tokens=6400)
    alone = artifact.run([first, second, behind], setting)
    news = [stream(f"news{i}", 2.0 + i / 10, (0.0, 16)) for i in range(70)]
    beside = artifact.run([first, second, behind, *news], setting)
    assert alone.steps > 5
    assert beside.preemptions["recompute"] == alone.preemptions["recompute"]


MESSAGES = st.lists(st.tuples(st.floats(0, 5), st.integers(1, 600)), min_size=1, max_size=4)


@given(
    prompts=st.lists(st.tuples(st.floats(0, 10), MESSAGES, st.booleans()), min_size=1, max_size=8),
    policy=st.sampled_from(ARTIFACT),
    preemption=st.sampled_from(["recompute", "swap", "cost"]),
    streaming=st.booleans(),
)
def test_everybody_is_answered_once_and_all_memory_comes_back(
    prompts: list[tuple[float, list[tuple[float, int]], bool]], policy: str, preemption: str, streaming: bool
) -> None:
    """Memory for any single prompt with its reserve, but for two of the longest only just or not."""
    streams = [
        stream(f"s{number}", starts_s, *sorted(messages), replaces=replaces)
        for number, (starts_s, messages, replaces) in enumerate(prompts)
    ]
    setting = replace(SETTING, policy=policy, preemption=preemption, streaming=streaming, kv_tokens=3200)
    run = artifact._Run(streams, setting, lambda: None)
    outcome = run.to_end()
    assert len(outcome.ttft_s) == len(streams)
    assert min(outcome.ttft_s) > 0
    assert run._free_blocks == run._all_blocks
