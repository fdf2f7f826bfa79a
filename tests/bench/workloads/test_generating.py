"""The generators are pure functions of a seed, and match what is published."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from stream2llm_bench.workloads import anns, crawler
from stream2llm_bench.workloads.checking import compare
from stream2llm_bench.workloads.distributions import Quantiles, stratified
from stream2llm_bench.workloads.drawing import split
from stream2llm_bench.workloads.streams import Message, Piece, Stream, common_prefix, cut

MODULES = {"crawler": crawler, "anns": anns}
COUNTS = {"crawler": 4309, "anns": 4997}
"""As many as the published distributions were taken from."""


def digest(streams: list[Stream]) -> str:
    return hashlib.sha256(repr(streams).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("seed", [42, 7])
def test_every_published_figure_is_met_within_a_tenth(name: str, seed: int) -> None:
    compared = compare(name, MODULES[name].generate(COUNTS[name], seed))
    published = [figure for figure in compared if figure.published is not None]
    assert len(published) == {"crawler": 22, "anns": 22}[name]
    assert [(figure.what, figure.figure, figure.error) for figure in published if not figure.passes] == []
    assert any(figure.published is None for figure in compared)


def test_a_seed_gives_the_same_streams_for_ever() -> None:
    assert digest(crawler.generate(50, 1)) == digest(crawler.generate(50, 1)) != digest(crawler.generate(50, 2))
    assert digest(anns.generate(50, 1)) == digest(anns.generate(50, 1)) != digest(anns.generate(50, 2))


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("count", [1, 2, 33])
def test_streams_are_whole(name: str, count: int) -> None:
    streams = MODULES[name].generate(count, 5)
    assert len({stream.name for stream in streams}) == count
    for stream in streams:
        times = [message.after_s for message in stream.messages]
        assert times == sorted(times)
        assert times[0] > 0
        assert all(piece.tokens > 0 for message in stream.messages for piece in message.pieces)
        assert not stream.messages[0].replaces
        waiting = stream.waiting()
        assert (waiting.final_pieces, waiting.duration_s) == (stream.final_pieces, stream.duration_s)


@pytest.mark.parametrize("name", MODULES)
def test_at_least_one_stream_must_be_asked_for(name: str) -> None:
    with pytest.raises(ValueError, match="requests must be at least 1, not 0"):
        MODULES[name].generate(0, 1)
    with pytest.raises(ValueError, match="seed must be from 0 to 4294967295, not -1"):
        MODULES[name].generate(1, -1)


def test_an_update_keeps_what_was_there_before_the_first_change() -> None:
    for stream in anns.generate(60, 3):
        for before, after in zip(stream.messages, stream.messages[1:], strict=False):
            assert before.tokens == after.tokens
            assert after.replaces
            # The question is at the end, so something always changes.
            assert common_prefix(before.pieces, after.pieces) < after.tokens


def test_prompts_share_what_their_pieces_share() -> None:
    old = (Piece(1, 10), Piece(2, 5))
    assert common_prefix(old, old) == 15
    assert common_prefix(old, (Piece(1, 10), Piece(3, 5))) == 10
    assert common_prefix(old, (Piece(1, 7), Piece(2, 5))) == 7
    assert common_prefix(old, (Piece(2, 5),)) == 0
    assert common_prefix(old, cut(old, 12)) == 12
    assert cut(old, 12) == (Piece(1, 10), Piece(2, 2))
    assert cut(old, 0) == ()


def test_a_final_prompt_is_what_the_last_update_and_later_appends_leave() -> None:
    messages = (
        Message(1.0, (Piece(1, 3),)),
        Message(2.0, (Piece(2, 4),), replaces=True),
        Message(3.0, (Piece(3, 5),)),
    )
    stream = Stream("a", messages)
    assert stream.final_pieces == (Piece(2, 4), Piece(3, 5))
    assert stream.final_tokens == 9
    assert stream.slowed(10).messages[2].after_s == 30.0


def test_quantiles_are_hit_even_by_few_draws() -> None:
    quantiles = Quantiles([(0.0, 1.0), (0.5, 10.0), (1.0, 1000.0)])
    drawn = quantiles.at(stratified(np.random.RandomState(1), 101))
    assert np.median(drawn) == pytest.approx(10.0, rel=0.05)
    assert list(quantiles.at(np.array([0.0, 0.25, 0.5, 0.75, 1.0]))) == pytest.approx([1, 10**0.5, 10, 100, 1000])


@pytest.mark.parametrize(
    "points", [[(0.0, 1.0)], [(0.1, 1.0), (1.0, 2.0)], [(0.0, 0.0), (1.0, 2.0)], [(0.0, 2.0), (1.0, 1.0)]]
)
def test_quantiles_that_are_none_are_refused(points: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="must"):
        Quantiles(points)


@pytest.mark.parametrize(("tokens", "parts"), [(1000, 7), (7, 7), (3, 7), (10_000, 1)])
def test_parts_sum_up(tokens: int, parts: int) -> None:
    sizes = split(tokens, np.exp(np.random.RandomState(3).standard_normal(parts)))
    assert len(sizes) == parts
    assert min(sizes) >= 1
    assert sum(sizes) == max(tokens, parts)
