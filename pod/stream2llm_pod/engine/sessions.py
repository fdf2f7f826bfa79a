"""The streaming state of one request, kept beside vLLM's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stream2llm_pod.engine.protocol import Op
from stream2llm_pod.scheduling.prefix import TokenArray, to_tokens


class Prompt:
    """A growing prompt as one int32 array; appending is amortised O(1) per token."""

    def __init__(self, token_ids: list[int]) -> None:
        self._buffer = to_tokens(token_ids)
        self._length = len(token_ids)

    def __len__(self) -> int:
        return self._length

    @property
    def tokens(self) -> TokenArray:
        """Shape [tokens], a view: valid until the next change."""
        return self._buffer[: self._length]

    def append(self, token_ids: list[int]) -> None:
        length = self._length + len(token_ids)
        if length > len(self._buffer):
            grown = np.empty(max(length, 2 * len(self._buffer)), dtype=np.int32)
            grown[: self._length] = self.tokens
            self._buffer = grown
        self._buffer[self._length : length] = token_ids
        self._length = length

    def replace(self, tokens: TokenArray) -> None:
        self._buffer, self._length = tokens, len(tokens)


@dataclass(slots=True)
class StreamSession:
    """Times are seconds on the scheduler's clock; counts are totals over the stream's life."""

    req_id: str
    prompt: Prompt
    max_tokens: int
    """The client's; vLLM's own field is 1 while the stream is open, so that nothing decodes past the known prompt."""
    first_chunk_s: float
    last_chunk_s: float
    open: bool = True
    computed_once_tokens: int = 0
    """Longest prefix of the present prompt that was ever computed, even if a preemption took it since."""
    prefilled_before_finish_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    swapped_tokens: int = 0
    """Tokens that came back from host memory after preemptions."""
    invalidated_tokens: int = 0
    carried: tuple[int, ...] = ()
    """First tokens of the answer, at the end of the prompt, that the grammar of a structured output has yet to take."""
    pending: list[tuple[Any, Op]] = field(default_factory=list)
    """Operations that arrived while a KV transfer into this request was under way."""

    def report(self) -> dict[str, int]:
        """What the client's side is told when the stream ends."""
        return {
            "prefilled_before_finish_tokens": self.prefilled_before_finish_tokens,
            "preemptions": self.preemptions,
            "recomputed_tokens": self.recomputed_tokens,
            "swapped_tokens": self.swapped_tokens,
            "invalidated_tokens": self.invalidated_tokens,
        }
