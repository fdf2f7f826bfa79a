"""Which lengths to measure, how often, and which not, in a bounded time. Pure; time is passed in."""

from __future__ import annotations

import math
from collections.abc import Sequence

MAX_SAMPLES = 7
KEPT_FOR_ONE_LENGTH = 0.25
"""Share of the remaining time that a length may always use, even if the longest ones then do not fit."""
SLACK = 1.15
"""How much longer than predicted a sample may take before it does not fit."""


def lengths_to_measure(block_size: int, longest_tokens: int) -> list[int]:
    """Powers of two from the first that fills a block, then the longest prompt itself."""
    tokens = 1 << max(block_size - 1, 0).bit_length()
    lengths = []
    while tokens < longest_tokens:
        lengths.append(tokens)
        tokens *= 2
    return [*lengths, longest_tokens] if longest_tokens > 0 else []


class Predictor:
    """Predicts a sample's seconds from those of shorter prompts: a power law through the last two, at least linear."""

    def __init__(self) -> None:
        self._known: list[tuple[int, float]] = []

    def observe(self, tokens: int, seconds: float) -> None:
        """Lengths come in increasing order; a second value for the last one replaces the first."""
        if self._known and self._known[-1][0] == tokens:
            self._known.pop()
        self._known.append((tokens, seconds))

    def seconds(self, tokens: int) -> float:
        """0 as long as nothing is known."""
        if not self._known:
            return 0.0
        last_tokens, last_s = self._known[-1]
        exponent = 1.0
        if len(self._known) > 1 and self._known[-2][1] > 0 and last_s > 0:
            before_tokens, before_s = self._known[-2]
            exponent = math.log(last_s / before_s) / math.log(last_tokens / before_tokens)
        return last_s * math.pow(tokens / last_tokens, min(max(exponent, 1.0), 2.0))


def samples_to_take(predicted_s: Sequence[float], remaining_s: float, *, warm_up: bool) -> int:
    """How many samples of the first length fit, beside a discarded one if `warm_up`; 0 if it must be skipped.

    predicted_s: seconds of one sample of this length and of each longer one that is still to come. One sample of each
    of those is kept free as far as that leaves a share for this length.
    """
    first_s, later_s = predicted_s[0], sum(predicted_s[1:])
    if (1 + warm_up) * first_s * SLACK > remaining_s:
        return 0
    if first_s <= 0:
        return MAX_SAMPLES
    spare_s = max(remaining_s - SLACK * later_s, KEPT_FOR_ONE_LENGTH * remaining_s)
    return min(max(int(spare_s / (SLACK * first_s)) - warm_up, 1), MAX_SAMPLES)
