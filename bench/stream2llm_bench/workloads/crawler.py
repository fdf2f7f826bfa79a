"""Pages of a web crawl, appended as they are fetched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stream2llm_bench.workloads.distributions import stratified
from stream2llm_bench.workloads.drawing import check_count, generator, message_times_s, split
from stream2llm_bench.workloads.published import CRAWLER
from stream2llm_bench.workloads.streams import Message, Piece, Stream

NAME = "crawler"


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What is not published. The first two decide how much is left to compute at the finish, and are set so that the
    published times of vLLM's default streaming at low load come out (docs/decisions/0017)."""

    page_sigma: float = 1.0
    """Pages of one query differ in size as a log-normal distribution with this standard deviation."""
    last_page_factor: float = 2.0
    """The page that is fetched last is so much larger than the others: large pages take longer."""
    chunk_deviation: float = 3.0
    """Standard deviation of the normal distribution of chunks per query, cut to its published extremes."""
    frame_tokens: int = 40
    """Template in front, question behind."""


def generate(count: int, seed: int, assumptions: Assumptions = Assumptions()) -> list[Stream]:
    """`count` streams in no order. ValueError for a count below 1 or a negative seed."""
    check_count(count)
    random = generator(NAME, seed)
    tokens = np.rint(CRAWLER.tokens.quantiles().at(stratified(random, count))).astype(np.int64)
    low, high = CRAWLER.chunks.published["min"], CRAWLER.chunks.published["max"]
    drawn = CRAWLER.chunks.published["mean"] + assumptions.chunk_deviation * random.standard_normal(count)
    counts = np.clip(np.rint(drawn), low, high).astype(np.int64)
    times = message_times_s(random, CRAWLER, counts)
    streams = []
    for number, (total, after_s) in enumerate(zip(tokens, times, strict=True)):
        weights = np.exp(assumptions.page_sigma * random.standard_normal(len(after_s)))
        weights[-1] *= assumptions.last_page_factor
        sizes = split(max(int(total) - assumptions.frame_tokens, 1), weights)
        sizes[-1] += assumptions.frame_tokens
        messages = tuple(
            Message(float(when_s), (Piece(i, size),))
            for i, (when_s, size) in enumerate(zip(after_s, sizes, strict=True))
        )
        streams.append(Stream(f"{NAME}-{number}", messages))
    return streams
