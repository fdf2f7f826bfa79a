"""Seeded chunks for comparisons of engines: real text as token ids, arriving the way a crawler's pages do."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Chunks of token ids and when each arrives, in seconds after the start. The prompt ends with the last one."""

    chunks: tuple[tuple[int, ...], ...]
    after_s: tuple[float, ...]

    @property
    def prompt(self) -> list[int]:
        """All chunks, joined."""
        return [token for chunk in self.chunks for token in chunk]

    @property
    def finish_s(self) -> float:
        """When the last chunk, and with it the finish, arrives."""
        return self.after_s[-1]


def draw_arrivals(
    text: Sequence[int], seed: int, *, chunks: int, chunk_tokens: int, spread: float, gap_s: float
) -> Arrivals:
    """Chunks of about `chunk_tokens` (uniform within ± `spread`, a fraction) from random places of `text`.

    The first arrives after one gap. Raises ValueError if `text` is shorter than the longest chunk.
    """
    longest = round(chunk_tokens * (1 + spread))
    if len(text) < longest:
        raise ValueError(f"text of {len(text)} tokens is shorter than a chunk of {longest}")
    rng = random.Random(seed)
    drawn = []
    for _ in range(chunks):
        length = rng.randint(round(chunk_tokens * (1 - spread)), longest)
        begin = rng.randrange(len(text) - length + 1)
        drawn.append(tuple(text[begin : begin + length]))
    return Arrivals(tuple(drawn), tuple(gap_s * (i + 1) for i in range(chunks)))
