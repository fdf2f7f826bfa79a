"""How long steps take, seen from the scheduler, which knows only when a step left and when its output came back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

Span = tuple[int, int]
"""Tokens of one request that a step computes: from the first up to, and without, the second."""

SUBSTANTIAL_TOKENS = 64
PREFILL_SHARE = 0.9
"""Steps are timed that compute at least so many prompt tokens, and hardly anything else: a prefill curve says nothing
about decoding."""


@dataclass(slots=True)
class _Step:
    token: object
    spans: Sequence[Span]
    left_s: float


class StepTimes:
    """Steps are executed one after another, also if several are under way (asynchronous scheduling): each begins when
    it has left and the one before has ended."""

    def __init__(self) -> None:
        self._under_way: deque[_Step] = deque()
        self._ended_s = float("-inf")

    def left(self, token: object, spans: Sequence[Span], now_s: float) -> None:
        """A step is on its way; `token` is what `ended` will be called with. No spans: it is not worth timing."""
        self._under_way.append(_Step(token, spans, now_s))

    def ended(self, token: object, now_s: float) -> tuple[Sequence[Span], float] | None:
        """The step's spans and the milliseconds it took; None for one that was not worth timing or is not known."""
        before_s, self._ended_s = self._ended_s, now_s
        while self._under_way:
            step = self._under_way.popleft()
            if step.token is token:
                return (step.spans, 1e3 * (now_s - max(step.left_s, before_s))) if step.spans else None
        return None


def substantial(spans: Sequence[Span], step_tokens: int) -> bool:
    """Whether a step of `step_tokens` tokens, of which `spans` are prompts', tells about prefill."""
    prompt_tokens = sum(end - start for start, end in spans)
    return prompt_tokens >= max(SUBSTANTIAL_TOKENS, PREFILL_SHARE * step_tokens)
