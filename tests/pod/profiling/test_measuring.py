"""The measuring loop on a subject whose durations are known: which lengths, how often, and what is skipped."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.costprofile import Curve
from stream2llm_pod.profiling.measuring import Skipped, measure, to_curve


@dataclass
class KnownSubject:
    """Prefill takes `token_s` a token, the first time at a length `warm_up_s` more; a copy a hundredth."""

    token_s: float = 0.001
    warm_up_s: float = 0.0
    block_size: int = 16
    budget_tokens: int = 64
    longest_tokens: int = 255
    kv_tokens: int = 10_000
    host_tokens: int = 10_000
    now_s: float = 0.0
    prefills: list[int] = field(default_factory=list)

    def prefill_s(self, tokens: int, deadline_s: float) -> float | None:
        seconds = tokens * self.token_s + (0.0 if tokens in self.prefills else self.warm_up_s)
        self.prefills.append(tokens)
        if self.now_s + seconds > deadline_s:
            self.now_s = deadline_s
            return None
        self.now_s += seconds
        return seconds

    def copies_s(self, tokens: int, repetitions: int) -> list[tuple[float, float]]:
        self.now_s += repetitions * 0.03 * tokens * self.token_s
        return [(0.01 * tokens * self.token_s, 0.02 * tokens * self.token_s)] * repetitions


def test_with_time_enough_all_is_measured_seven_times() -> None:
    subject = KnownSubject()
    found = measure(subject, clock=lambda: subject.now_s, deadline_s=1000.0)
    assert found.skipped == []
    assert {tokens: len(samples) for tokens, samples in found.prefill_ms.items()} == {
        16: 7,
        32: 7,
        64: 7,
        128: 7,
        255: 7,
    }
    assert to_curve(found.prefill_ms) == Curve(
        (16, 32, 64, 128, 255), (16.0, 32.0, 64.0, 128.0, 255.0), (0.0, 0.0, 0.0, 0.0, 0.0)
    )
    assert to_curve(found.swap_out_ms).ms == (0.16, 0.32, 0.64, 1.28, 2.55)
    assert to_curve(found.swap_in_ms).ms == (0.32, 0.64, 1.28, 2.56, 5.1)


def test_the_first_sample_of_a_new_shape_is_discarded() -> None:
    subject = KnownSubject(warm_up_s=5.0, longest_tokens=64)
    found = measure(subject, clock=lambda: subject.now_s, deadline_s=1000.0)
    assert to_curve(found.prefill_ms).ms == (16.0, 32.0, 64.0)
    assert subject.prefills.count(64) == 8
    assert subject.prefills.count(16) == 9


def test_longer_than_the_token_budget_is_no_new_shape() -> None:
    subject = KnownSubject()
    measure(subject, clock=lambda: subject.now_s, deadline_s=1000.0)
    assert subject.prefills.count(255) == 7


def test_what_does_not_fit_is_skipped_with_its_reason() -> None:
    subject = KnownSubject(token_s=0.1)
    found = measure(subject, clock=lambda: subject.now_s, deadline_s=40.0)
    assert list(found.prefill_ms) == [16, 32, 64]
    assert [skipped.tokens for skipped in found.skipped] == [128, 255]
    assert found.skipped[0].reason.startswith("one prompt takes about 12.8 s, and ")
    assert found.skipped[1].reason.startswith("one prompt takes about 25.5 s, and ")
    assert subject.now_s <= 40.0


def test_a_prompt_is_given_up_at_the_deadline() -> None:
    subject = KnownSubject(token_s=10.0, longest_tokens=16)
    found = measure(subject, clock=lambda: subject.now_s, deadline_s=60.0)
    assert found.prefill_ms == {}
    assert found.skipped == [Skipped(16, "no time is left")]
    assert subject.now_s == 60.0


@pytest.mark.parametrize(
    ("kv_tokens", "host_tokens", "reason"),
    [(100, 10_000, "the KV cache holds 100 tokens"), (10_000, 96, "the pool in CPU memory holds 96 tokens")],
)
def test_what_memory_cannot_hold_is_skipped(kv_tokens: int, host_tokens: int, reason: str) -> None:
    subject = KnownSubject(kv_tokens=kv_tokens, host_tokens=host_tokens)
    found = measure(subject, clock=lambda: subject.now_s, deadline_s=1000.0)
    assert list(found.prefill_ms) == [16, 32, 64]
    assert found.skipped == [Skipped(128, reason), Skipped(255, reason)]


@given(st.floats(1e-5, 1.0), st.floats(0.1, 500.0), st.integers(1, 5000))
def test_it_ends_in_time_and_accounts_for_every_length(token_s: float, deadline_s: float, longest: int) -> None:
    subject = KnownSubject(token_s=token_s, longest_tokens=longest)
    seen: list[tuple[int, int]] = []
    found = measure(
        subject,
        clock=lambda: subject.now_s,
        deadline_s=deadline_s,
        progress=lambda done, total, _: seen.append((done, total)),
    )
    # Copies are not interrupted: the last ones, at most seven of a thirtieth of a prompt each, may pass the deadline.
    assert subject.now_s <= deadline_s * 1.25
    lengths = sorted([*found.prefill_ms, *(skipped.tokens for skipped in found.skipped)])
    assert lengths[-1] == longest
    assert seen == [(i + 1, len(lengths)) for i in range(len(lengths))]
    assert all(len(samples) >= 1 for samples in found.prefill_ms.values())
    assert found.swap_out_ms.keys() == found.swap_in_ms.keys() == found.prefill_ms.keys()
