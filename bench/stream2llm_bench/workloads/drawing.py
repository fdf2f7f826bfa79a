"""What the generators of both workloads share: times of the messages, and numbers of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stream2llm_bench.workloads.distributions import Floats, stratified
from stream2llm_bench.workloads.published import Published

SHORTEST_FIRST_MS = 50.0
"""The least that a retrieval takes to its first message, where its gaps alone are longer than its duration."""

Integers = NDArray[np.int64]


def generator(workload: str, seed: int) -> np.random.RandomState:
    """Numpy promises that this class gives the same numbers for ever; its newer ones may change with a version.

    Raises ValueError for a seed outside 0 to 2^32 − 1.
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must be from 0 to {2**32 - 1}, not {seed}")
    return np.random.RandomState([seed, *workload.encode()])


def message_times_s(
    random: np.random.RandomState, published: Published, counts: Integers, *, longest_last: bool = False
) -> list[Floats]:
    """For each stream the times of its `counts` messages since the start of its retrieval, in seconds.

    Gaps and durations have their published distributions; the longest sum of gaps gets the longest duration, and what
    is left of a duration is the time to the first message. longest_last: the longest gap of each stream is its last.
    """
    gaps_ms = published.gap_ms.quantiles().at(stratified(random, int((counts - 1).sum())))
    per_stream = np.split(gaps_ms, np.cumsum(counts - 1)[:-1])
    if longest_last:
        per_stream = [np.sort(gaps) for gaps in per_stream]
    sums_ms = np.array([gaps.sum() for gaps in per_stream])
    durations_ms = np.sort(published.duration_ms.quantiles().at(stratified(random, len(counts))))
    ranks = np.empty(len(counts), dtype=np.int64)
    ranks[np.argsort(sums_ms, kind="stable")] = np.arange(len(counts))
    first_ms = np.maximum(durations_ms[ranks] - sums_ms, SHORTEST_FIRST_MS)
    return [
        np.concatenate(([first], first + np.cumsum(gaps))) / 1e3
        for first, gaps in zip(first_ms, per_stream, strict=True)
    ]


def split(tokens: int, weights: Floats) -> list[int]:
    """`tokens` in one part for each weight, each at least 1. They sum to `tokens`, or to the number of parts if that
    is larger."""
    bounds = np.floor(np.cumsum(weights) / weights.sum() * max(tokens - len(weights), 0)).astype(np.int64)
    bounds[-1] = max(tokens - len(weights), 0)
    return [int(part) + 1 for part in np.diff(bounds, prepend=0)]


def check_count(count: int) -> None:
    """Raises ValueError unless at least one stream is asked for."""
    if count < 1:
        raise ValueError(f"requests must be at least 1, not {count}")
