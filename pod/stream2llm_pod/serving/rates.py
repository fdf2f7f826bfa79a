"""How fast this pod prefills, as routers need it to predict waiting times. Pure."""

from __future__ import annotations

from dataclasses import dataclass

SMOOTHING = 0.2
"""Weight of the newest observation."""
MIN_OBSERVED_TOKENS = 64
"""An interval in which less was computed says nothing about speed."""


@dataclass(slots=True)
class PrefillRate:
    """Prompt tokens per second while there is work: an exponentially weighted mean over busy intervals."""

    _tokens: float | None = None
    _at_s: float = 0.0
    _busy: bool = False
    _rate: float | None = None

    def observe(self, prefilled_tokens: float, backlog_tokens: int, now_s: float) -> float | None:
        """Take in the total of computed prompt tokens and the backlog at `now_s`; returns the rate, None if unknown.

        Only intervals with a backlog at both ends count: in others the pod was idle for part of the time.
        """
        busy = backlog_tokens > 0
        if self._tokens is not None and self._busy and busy and now_s > self._at_s:
            done_tokens = prefilled_tokens - self._tokens
            if done_tokens >= MIN_OBSERVED_TOKENS:
                rate = done_tokens / (now_s - self._at_s)
                self._rate = rate if self._rate is None else self._rate + SMOOTHING * (rate - self._rate)
        self._tokens, self._at_s, self._busy = prefilled_tokens, now_s, busy
        return self._rate
