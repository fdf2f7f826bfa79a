"""Streams that together need several times the KV cache that there is. Pure and seeded."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arriving:
    """One stream: its chunks with their times; the last one finishes it."""

    name: str
    chunks: tuple[tuple[float, int], ...]
    """(seconds after the start, tokens), in order."""
    tenant: str = ""
    """Whose it is; nobody says so if that is empty."""
    weight: float = 1.0
    """The tenant's."""

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.chunks)

    @property
    def finish_s(self) -> float:
        return self.chunks[-1][0]


@dataclass(frozen=True, slots=True)
class Kind:
    """A sort of streams: how many tokens in all, in how many chunks, uniformly drawn; and how far apart."""

    tokens: tuple[int, int]
    chunks: tuple[int, int]
    gap_s: float
    """Mean of the exponentially distributed times between chunks."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Streams of several kinds, in turn, that arrive at random (Poisson)."""

    name: str
    kinds: tuple[Kind, ...]
    streams: int
    streams_per_s: float

    def draw(self, seed: int) -> list[Arriving]:
        """The streams of one run, in the order of their arrival."""
        chooser = random.Random(f"{self.name}-{seed}")
        start_s, drawn = 0.0, []
        for number in range(self.streams):
            start_s += chooser.expovariate(self.streams_per_s)
            kind = self.kinds[number % len(self.kinds)]
            count = chooser.randint(*kind.chunks)
            sizes = _split(chooser, chooser.randint(*kind.tokens), count)
            when_s, chunks = start_s, []
            for size in sizes:
                chunks.append((when_s, size))
                when_s += chooser.expovariate(1 / kind.gap_s)
            drawn.append(Arriving(f"{self.name}-{seed}-{number}", tuple(chunks)))
        return drawn


def _split(chooser: random.Random, tokens: int, parts: int) -> list[int]:
    """`tokens` in `parts` pieces of similar size, each at least 1."""
    weights = [chooser.uniform(0.5, 1.5) for _ in range(parts)]
    sizes = [max(int(tokens * weight / sum(weights)), 1) for weight in weights]
    sizes[-1] = max(sizes[-1] + tokens - sum(sizes), 1)
    return sizes


def most_open_tokens(streams: Iterable[Arriving]) -> int:
    """The most tokens that streams which have not finished hold at one time, if none waits for anything."""
    changes: list[tuple[float, int]] = []
    for stream in streams:
        changes.extend(stream.chunks)
        changes.append((stream.finish_s, -stream.tokens))
    # At equal times what arrives counts before what leaves.
    changes.sort(key=lambda change: (change[0], -change[1]))
    most = held = 0
    for _, tokens in changes:
        held += tokens
        most = max(most, held)
    return most


def blocks_for_a_third(streams: Sequence[Arriving], block_size: int) -> int:
    """A third of what the open streams need, but never less than the longest prompt and some room beside it."""
    longest = max(stream.tokens for stream in streams)
    tokens = max(most_open_tokens(streams) // 3, longest + 8 * block_size)
    return -(-tokens // block_size)
