"""Measures prefill and copies at growing lengths until the time is used up."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stream2llm.costprofile import Curve
from stream2llm_pod.profiling.budgeting import Predictor, lengths_to_measure, samples_to_take


class Subject(Protocol):
    """The engine that is measured."""

    block_size: int
    budget_tokens: int
    longest_tokens: int
    """The longest prompt that the model takes."""
    kv_tokens: int
    """How many tokens the KV cache holds."""
    host_tokens: int
    """How many tokens the pool in CPU memory holds."""

    def prefill_s(self, tokens: int, deadline_s: float) -> float | None:
        """Seconds from the arrival of a prompt that nobody has seen to its first token; None if it was given up at
        `deadline_s` on the clock that measures."""
        ...

    def copies_s(self, tokens: int, repetitions: int) -> list[tuple[float, float]]:
        """Seconds of copying the blocks of `tokens` tokens out and in, by repetition; the slowest rank counts."""
        ...


@dataclass(frozen=True, slots=True)
class Skipped:
    """A length without a measurement, and why."""

    tokens: int
    reason: str


@dataclass(slots=True)
class Measurements:
    """Milliseconds by length, in the order measured."""

    prefill_ms: dict[int, list[float]] = field(default_factory=dict)
    swap_out_ms: dict[int, list[float]] = field(default_factory=dict)
    swap_in_ms: dict[int, list[float]] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)


Progress = Callable[[int, int, str], None]
"""Told after each length: how many are dealt with, of how many, and what came out."""


def measure(
    subject: Subject, *, clock: Callable[[], float], deadline_s: float, progress: Progress = lambda *_: None
) -> Measurements:
    """Medians need several samples and the longest prompts take most of the time, so short lengths are measured up to
    seven times and long ones as often as the time allows; the first sample of a length is a warm-up and discarded as
    long as its steps are of a new shape, which they no longer are beyond the token budget.
    """
    found = Measurements()
    lengths = lengths_to_measure(subject.block_size, subject.longest_tokens)
    predictor = Predictor()
    if lengths and lengths[0] <= subject.kv_tokens:
        # The engine's very first prompt: slow, and good enough to plan the first length with.
        first_s = subject.prefill_s(lengths[0], deadline_s)
        if first_s is not None:
            predictor.observe(lengths[0], first_s)
    for i, tokens in enumerate(lengths):
        reason = _measure_length(subject, lengths[i:], found, predictor, clock, deadline_s)
        if reason is not None:
            found.skipped.append(Skipped(tokens, reason))
        progress(i + 1, len(lengths), f"{tokens} tokens: {reason or _outcome(found, tokens)}")
    return found


def _measure_length(
    subject: Subject,
    lengths: Sequence[int],
    found: Measurements,
    predictor: Predictor,
    clock: Callable[[], float],
    deadline_s: float,
) -> str | None:
    """Measure the first of `lengths`; returns why not, if it is not."""
    tokens = lengths[0]
    for holds, what in ((subject.kv_tokens, "the KV cache"), (subject.host_tokens, "the pool in CPU memory")):
        if tokens > holds:
            return f"{what} holds {holds} tokens"
    warm_up = tokens <= subject.budget_tokens
    remaining_s = deadline_s - clock()
    predicted_s = [predictor.seconds(length) for length in lengths]
    samples = samples_to_take(predicted_s, remaining_s, warm_up=warm_up)
    if remaining_s <= 0:
        return "no time is left"
    if not samples:
        return f"one prompt takes about {predicted_s[0]:.1f} s, and {remaining_s:.1f} s are left"
    taken: list[float] = []
    for number in range(samples + warm_up):
        if taken and deadline_s - clock() < taken[-1]:
            break
        seconds = subject.prefill_s(tokens, deadline_s)
        if seconds is None:
            break
        if number >= warm_up:
            taken.append(seconds)
    if not taken:
        return f"it was given up when the {remaining_s:.1f} s that were left had passed"
    predictor.observe(tokens, statistics.median(taken))
    copies = subject.copies_s(tokens, max(samples, 3))
    found.prefill_ms[tokens] = [1e3 * seconds for seconds in taken]
    found.swap_out_ms[tokens] = [1e3 * out_s for out_s, _ in copies]
    found.swap_in_ms[tokens] = [1e3 * in_s for _, in_s in copies]
    return None


def _outcome(found: Measurements, tokens: int) -> str:
    prefill, out, back = (
        statistics.median(samples[tokens]) for samples in (found.prefill_ms, found.swap_out_ms, found.swap_in_ms)
    )
    return f"prefill {prefill:.1f} ms, out {out:.2f} ms, in {back:.2f} ms"


def to_curve(samples_ms: dict[int, list[float]]) -> Curve:
    """Medians with their median absolute deviations, in microseconds' precision."""
    medians = {tokens: statistics.median(samples) for tokens, samples in samples_ms.items()}
    deviations = {
        tokens: statistics.median(abs(sample - medians[tokens]) for sample in samples)
        for tokens, samples in samples_ms.items()
    }
    return Curve(
        tuple(medians),
        tuple(round(median, 3) for median in medians.values()),
        tuple(round(deviation, 3) for deviation in deviations.values()),
    )
