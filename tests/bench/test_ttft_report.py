"""Figures, tables and plot of `bench ttft`, from made-up measurements; and its seeded chunks."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm_bench.arriving import draw_arrivals
from stream2llm_bench.comparing import ratio_of_pairs
from stream2llm_bench.reporting import write
from stream2llm_bench.ttft import STOCK, STREAMING, WAITING, Answer, Series, make_report


def series(*asker_s: float, finish_s: float = 4.0) -> Series:
    return Series([Answer(value, value - finish_s, (1, 2)) for value in asker_s])


def test_ratios_are_medians_within_pairs(tmp_path: Path) -> None:
    measured = {
        STREAMING: series(5.0, 4.5, 5.0),
        WAITING: series(10.0, 9.0, 6.0),
        STOCK: series(5.5, 4.5, 5.0),
    }
    report = make_report(measured, argparse.Namespace(chunk_tokens=100))
    assert report.figures["asker_ratio_vs_waiting"] == 2.0
    assert report.figures["asker_ratio_vs_waiting_spread"] == [1.2, 2.0]
    assert report.figures["ttft_ratio_vs_waiting"] == 6.0
    assert report.figures["asker_ratio_vs_stock_streaming"] == 1.0
    assert report.figures["asker_ratio_bound"] == 2.25
    assert report.figures["pairs"] == 3
    written = {path.suffix: path for path in write(report, tmp_path)}
    assert written[".png"].read_bytes().startswith(b"\x89PNG")
    assert "stock vLLM, streaming input" in written[".txt"].read_text()


def test_pairs_must_match() -> None:
    with pytest.raises(ValueError):
        ratio_of_pairs([1.0, 2.0], [1.0])


@given(st.integers(0, 10_000), st.integers(1, 12))
def test_chunks_are_seeded_pieces_of_the_text(seed: int, chunks: int) -> None:
    text = list(range(500))
    arrivals = draw_arrivals(text, seed, chunks=chunks, chunk_tokens=100, spread=0.2, gap_s=0.7)
    assert arrivals == draw_arrivals(text, seed, chunks=chunks, chunk_tokens=100, spread=0.2, gap_s=0.7)
    assert len(arrivals.chunks) == chunks
    for chunk in arrivals.chunks:
        assert 80 <= len(chunk) <= 120
        assert list(chunk) == text[chunk[0] : chunk[0] + len(chunk)]
    assert arrivals.prompt == [token for chunk in arrivals.chunks for token in chunk]
    assert arrivals.after_s == tuple(0.7 * (i + 1) for i in range(chunks))


def test_a_short_text_is_refused() -> None:
    with pytest.raises(ValueError, match="text of 119 tokens is shorter than a chunk of 120"):
        draw_arrivals(range(119), 1, chunks=1, chunk_tokens=100, spread=0.2, gap_s=0.7)
