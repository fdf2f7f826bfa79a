"""What prefill and copies cost per token, learnt while serving: for engines that have no cost profile."""

from __future__ import annotations

import math
from collections.abc import Iterable

WEIGHT = 0.1
"""Share of the newest observation: half of a change is followed after seven observations."""


class TokenCost:
    """Milliseconds per token as an exponentially weighted mean; 0 until something is observed."""

    def __init__(self) -> None:
        self.ms_per_token = 0.0

    def observe(self, tokens: float, ms: float) -> None:
        """`tokens` took `ms`; what is not positive and finite says nothing."""
        if not (0 < tokens < math.inf and 0 < ms < math.inf):
            return
        newest = ms / tokens
        self.ms_per_token = (
            newest if self.ms_per_token == 0 else self.ms_per_token + WEIGHT * (newest - self.ms_per_token)
        )


class LearntCosts:
    """Stands where a `CostModel` would, for figures only: nothing is decided by it."""

    def __init__(self) -> None:
        self._prefill, self._swap_out, self._swap_in = TokenCost(), TokenCost(), TokenCost()

    def recompute_ms(self, tokens: int, kept_tokens: int = 0) -> float:
        return max(tokens - kept_tokens, 0) * self._prefill.ms_per_token

    def swap_ms(self, tokens: int) -> float:
        return tokens * (self._swap_out.ms_per_token + self._swap_in.ms_per_token)

    def prefill_ms(self, spans: Iterable[tuple[int, int]]) -> float:
        """Of the tokens from the first up to, and without, the second of each span."""
        return sum(end - start for start, end in spans) * self._prefill.ms_per_token

    def observe_prefill(self, spans: Iterable[tuple[int, int]], ms: float) -> None:
        """A step that computed these spans took `ms`."""
        self._prefill.observe(sum(end - start for start, end in spans), ms)

    def observe_swap_out(self, tokens: int, ms: float) -> None:
        self._swap_out.observe(tokens, ms)

    def observe_swap_in(self, tokens: int, ms: float) -> None:
        self._swap_in.observe(tokens, ms)
