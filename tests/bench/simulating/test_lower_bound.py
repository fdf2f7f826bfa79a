"""The time to first token on a machine of one's own, by hand."""

from __future__ import annotations

import pytest

from stream2llm_bench.simulating.hardware import Hardware, find_hardware
from stream2llm_bench.simulating.lower_bound import lower_bound_s
from stream2llm_bench.workloads.streams import Message, Piece, Stream

MACHINE = Hardware(
    "test", step_ms=10.0, token_us=1000.0, pair_ns=0.0, kv_tokens=1, copy_ms=0, copied_token_us=0, host_tokens=1
)
"""10 ms a step and 1 ms a token."""


def append(after_s: float, identity: int, tokens: int) -> Message:
    return Message(after_s, (Piece(identity, tokens),))


def bound_ms(*messages: Message, budget_tokens: int = 100) -> float:
    return 1e3 * lower_bound_s(Stream("a", messages), MACHINE, budget_tokens)


def test_a_prompt_sent_at_once_takes_all_its_steps() -> None:
    assert bound_ms(append(5.0, 0, 250)) == pytest.approx(3 * 10 + 250)


def test_what_came_long_before_is_computed_by_the_finish() -> None:
    assert bound_ms(append(1.0, 0, 250), append(9.0, 1, 20)) == pytest.approx(10 + 20)


def test_a_message_that_falls_into_a_step_waits_for_its_end() -> None:
    # The step of 100 tokens ends at 1.110, the message came at 1.050.
    assert bound_ms(append(1.0, 0, 100), append(1.050, 1, 20)) == pytest.approx(60 + 30)


def test_an_update_takes_back_what_it_changes() -> None:
    update = Message(9.0, (Piece(0, 60), Piece(2, 50)), replaces=True)
    assert bound_ms(append(1.0, 0, 100), update) == pytest.approx(10 + 50)


def test_an_identical_update_leaves_one_token_to_compute() -> None:
    assert bound_ms(append(1.0, 0, 100), Message(9.0, (Piece(0, 100),), replaces=True)) == pytest.approx(11)


def test_later_tokens_attend_to_more() -> None:
    hardware = find_hardware("h200-tp2")
    assert hardware.prefill_ms(1000) == pytest.approx(8 + 12.5 + 0.23)
    assert hardware.span_ms(1000, 2000) == pytest.approx(12.5 + 0.23 * 3)


def test_unknown_hardware_is_named() -> None:
    with pytest.raises(ValueError, match="hardware 'h300' is not known; choose one of h200-tp2, h100-tp2"):
        find_hardware("h300")
