"""What a preemption costs: recomputing the prompt, or copying its KV blocks to CPU memory and back.

The curves come from a measured, imported or estimated cost profile and are followed online by one bounded factor each.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import pairwise

MIN_CORRECTION = 0.25
MAX_CORRECTION = 4.0
CORRECTION_WEIGHT = 0.1
"""Share of the newest observation in a correction: half of a change is followed after seven observations."""


class Preemption(StrEnum):
    """How a victim gives up its KV blocks."""

    RECOMPUTE = "recompute"
    SWAP = "swap"


class CostCurve:
    """Milliseconds by number of tokens: piecewise linear through measured medians, never falling.

    - Medians that fall with the length are noise; they are pooled with their neighbours (isotonic regression by the
      pool-adjacent-violators algorithm, equal weights), so the curve is the monotone one nearest in least squares.
    - No tokens cost nothing. Between none and the first point the first segment is prolonged down to `overhead_ms` (at
      least 0): what even one token costs.
    - Behind the last point it goes on with the slope of the last segment that rises.
    - A single point makes a line through the origin.
    """

    def __init__(self, points: Sequence[tuple[int, float]]) -> None:
        """points: (tokens, ms) with tokens strictly increasing from 1 on and ms finite and not negative.

        Raises ValueError otherwise, or if there are none.
        """
        if not points:
            raise ValueError("a cost curve needs at least one point")
        previous_tokens = 0
        for tokens, ms in points:
            if tokens <= previous_tokens:
                raise ValueError(f"tokens must be strictly increasing from 1 on; {tokens} follows {previous_tokens}")
            if not (math.isfinite(ms) and ms >= 0):
                raise ValueError(f"ms at {tokens} tokens must be finite and not negative, not {ms}")
            previous_tokens = tokens
        self._tokens = [tokens for tokens, _ in points]
        self._ms = _monotone([ms for _, ms in points])
        segments = list(zip(self._tokens, self._ms, strict=True))
        slopes = [(ms_b - ms_a) / (b - a) for (a, ms_a), (b, ms_b) in pairwise(segments)]
        if not slopes:
            slopes = [self._ms[0] / self._tokens[0]]
        self._last_slope = next((slope for slope in reversed(slopes) if slope > 0), 0.0)
        self.overhead_ms = max(self._ms[0] - slopes[0] * self._tokens[0], 0.0)

    def ms(self, tokens: float) -> float:
        """Milliseconds for `tokens` at once; 0 for none."""
        return self._at(tokens) if tokens > 0 else 0.0

    def span_ms(self, start_tokens: float, end_tokens: float) -> float:
        """What the tokens from `start_tokens` up to `end_tokens` add to a step that runs anyway.

        The overhead is not in it: `overhead_ms + span_ms(0, n)` is `ms(n)`.
        """
        return self._at(end_tokens) - self._at(start_tokens)

    def _at(self, tokens: float) -> float:
        """The line, with its overhead also at no tokens."""
        known, values = self._tokens, self._ms
        if tokens >= known[-1]:
            return values[-1] + self._last_slope * (tokens - known[-1])
        right = bisect_left(known, tokens)
        low, low_ms = (known[right - 1], values[right - 1]) if right else (0, self.overhead_ms)
        return low_ms + (values[right] - low_ms) * (tokens - low) / (known[right] - low)


def _monotone(values: Iterable[float]) -> list[float]:
    """The non-decreasing sequence nearest to `values` in least squares."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, size = float(value), 1
        while pools and pools[-1][0] > mean:
            other_mean, other_size = pools.pop()
            mean = (other_mean * other_size + mean * size) / (other_size + size)
            size += other_size
        pools.append((mean, size))
    return [mean for mean, size in pools for _ in range(size)]


class Correction:
    """A factor that follows observed ÷ predicted, exponentially weighted and bounded.

    It averages logarithms, so that twice as slow and twice as fast cancel out. One observation counts at most as the
    bounds, so that a single stall moves it little.
    """

    def __init__(self) -> None:
        self._log = 0.0

    @property
    def ratio(self) -> float:
        """1 until something is observed; from 0.25 to 4."""
        return min(max(math.exp(self._log), MIN_CORRECTION), MAX_CORRECTION)

    def observe(self, predicted_ms: float, observed_ms: float) -> None:
        """Take one observation into account; one that is not a positive finite number on both sides says nothing."""
        if not (0 < predicted_ms < math.inf and 0 < observed_ms < math.inf):
            return
        ratio = min(max(observed_ms / predicted_ms, MIN_CORRECTION), MAX_CORRECTION)
        self._log += CORRECTION_WEIGHT * (math.log(ratio) - self._log)


class CostModel:
    """The three curves of one engine with their corrections.

    `observe_…` takes what really happened. Predictions are corrected; corrections are learnt from uncorrected ones.
    """

    def __init__(self, prefill: CostCurve, swap_out: CostCurve, swap_in: CostCurve) -> None:
        self.prefill, self.swap_out, self.swap_in = prefill, swap_out, swap_in
        self._prefill_correction, self._swap_out_correction, self._swap_in_correction = (
            Correction(),
            Correction(),
            Correction(),
        )

    # ---------------------------------------------------------------- predictions
    def recompute_ms(self, tokens: int, kept_tokens: int = 0) -> float:
        """Computing the first `tokens` of a prompt of which the first `kept_tokens` need not be computed."""
        lost_ms = self.prefill.ms(tokens) - self.prefill.ms(min(kept_tokens, tokens))
        return lost_ms * self._prefill_correction.ratio

    def swap_out_ms(self, tokens: int) -> float:
        return self.swap_out.ms(tokens) * self._swap_out_correction.ratio

    def swap_in_ms(self, tokens: int) -> float:
        return self.swap_in.ms(tokens) * self._swap_in_correction.ratio

    def swap_ms(self, tokens: int) -> float:
        """Out and, later, in again."""
        return self.swap_out_ms(tokens) + self.swap_in_ms(tokens)

    def step_ms(self, spans: Iterable[tuple[int, int]]) -> float:
        """One step that computes for each request its tokens from `start` up to `end`, uncorrected."""
        return self.prefill.overhead_ms + sum(self.prefill.span_ms(start, end) for start, end in spans)

    def prefill_ms(self, spans: Iterable[tuple[int, int]]) -> float:
        """Computing for each request its tokens from `start` up to `end`, in steps that run anyway."""
        return sum(self.prefill.span_ms(start, end) for start, end in spans) * self._prefill_correction.ratio

    # ---------------------------------------------------------------- observations
    def observe_prefill(self, spans: Iterable[tuple[int, int]], ms: float) -> None:
        """One step that computed for each request its tokens from `start` up to `end` took `ms`."""
        self._prefill_correction.observe(self.step_ms(spans), ms)

    def observe_swap_out(self, tokens: int, ms: float) -> None:
        self._swap_out_correction.observe(self.swap_out.ms(tokens), ms)

    def observe_swap_in(self, tokens: int, ms: float) -> None:
        self._swap_in_correction.observe(self.swap_in.ms(tokens), ms)

    @property
    def corrections(self) -> dict[str, float]:
        """Curve → factor, as exported."""
        return {
            "prefill": self._prefill_correction.ratio,
            "swap_out": self._swap_out_correction.ratio,
            "swap_in": self._swap_in_correction.ratio,
        }


def choose(costs: CostModel, *, tokens: int, kept_tokens: int = 0, swapped_tokens: int, has_room: bool) -> Preemption:
    """The cheaper way to preempt a request.

    tokens: computed tokens that it loses unless they are swapped or kept; kept_tokens: how many of them, from the
    start, the prefix cache would give back; swapped_tokens: how many a swap would copy; has_room: the CPU pool can hold
    those. Equal costs mean recompute, which holds no CPU memory.
    """
    if not has_room or swapped_tokens <= 0:
        return Preemption.RECOMPUTE
    cheaper = costs.swap_ms(swapped_tokens) < costs.recompute_ms(tokens, kept_tokens)
    return Preemption.SWAP if cheaper else Preemption.RECOMPUTE
