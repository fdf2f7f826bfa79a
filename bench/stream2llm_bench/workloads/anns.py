"""Results of an approximate nearest-neighbour search, replaced as the search finds better ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stream2llm_bench.workloads.distributions import stratified
from stream2llm_bench.workloads.drawing import check_count, generator, message_times_s
from stream2llm_bench.workloads.published import ANNS
from stream2llm_bench.workloads.streams import Message, Piece, Stream, cut

NAME = "anns"


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What is not published."""

    kept_exponent: float = 0.4
    """The share of the prompt that an update keeps is 1 − u^(1/exponent) for a uniform u: 71 % of it on average. Set so
    that the published times of vLLM's default streaming come out (docs/decisions/0017)."""
    longest_last: bool = True
    """A search finds less and less: gaps grow, and the longest comes before the last update. In random order the last
    two updates would be 37 ms apart, and streaming could gain nothing, which is not what is published."""
    chunk_sigma: float = 0.5
    """Chunks per query are log-normal around the median, cut to the published extremes."""
    question_tokens: int = 30
    """Behind the documents, so no update keeps it."""


def generate(count: int, seed: int, assumptions: Assumptions = Assumptions()) -> list[Stream]:
    """`count` streams in no order, each with a prompt of one length throughout: a pool holds a fixed number of
    documents. ValueError for a count below 1 or a negative seed."""
    check_count(count)
    random = generator(NAME, seed)
    tokens = np.rint(ANNS.tokens.quantiles().at(stratified(random, count))).astype(np.int64)
    low, high = ANNS.chunks.published["min"], ANNS.chunks.published["max"]
    drawn = ANNS.chunks.published["p50"] * np.exp(assumptions.chunk_sigma * random.standard_normal(count))
    counts = np.clip(np.rint(drawn), low, high).astype(np.int64)
    times = message_times_s(random, ANNS, counts, longest_last=assumptions.longest_last)
    kept = 1.0 - (1.0 - stratified(random, int((counts - 1).sum()))) ** (1.0 / assumptions.kept_exponent)
    kept_of = iter(kept)
    streams = []
    for number, (total, after_s) in enumerate(zip(tokens, times, strict=True)):
        documents = max(int(total) - assumptions.question_tokens, 1)
        question = Piece(0, assumptions.question_tokens)
        pieces: tuple[Piece, ...] = (Piece(1, documents),)
        messages = [Message(float(after_s[0]), (*pieces, question))]
        for update, when_s in enumerate(after_s[1:], start=2):
            kept_tokens = int(next(kept_of) * documents)
            pieces = (*cut(pieces, kept_tokens), Piece(update, documents - kept_tokens))
            messages.append(Message(float(when_s), (*pieces, question), replaces=True))
        streams.append(Stream(f"{NAME}-{number}", tuple(messages)))
    return streams
