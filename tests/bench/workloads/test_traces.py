"""Traces in the format of the paper's artifact."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from stream2llm_bench.workloads.streams import Piece
from stream2llm_bench.workloads.traces import (
    FRAME_TOKENS,
    InvalidTrace,
    estimated_tokens,
    load_anns,
    load_corpus,
    load_crawler,
)


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def page(start_s: float, end_s: float, content: str | None = "two words", kind: str = "page_scrape") -> dict[str, Any]:
    return {"type": kind, "query": "q", "content": content, "startTime": start_s, "endTime": end_s}


def words(text: str) -> int:
    return len(text.split())


def test_pages_of_a_crawl_arrive_when_they_were_fetched(tmp_path: Path) -> None:
    rows = [page(1.5, 4.0, "one two three"), page(0, 1.5, None, "tavily_search"), page(1.5, 2.5, "one\nand 'two'")]
    write_csv(tmp_path / "query_7.csv", rows)
    (stream,) = load_crawler(tmp_path, words)
    assert stream.name == "crawler-7"
    assert [message.after_s for message in stream.messages] == [2.5, 4.0]
    assert stream.messages[0].pieces == (Piece(0, 3),)
    assert stream.messages[1].pieces == (Piece(1, 3), Piece(2, FRAME_TOKENS))


def test_crawls_come_by_id_and_those_without_pages_are_left_out(tmp_path: Path) -> None:
    search = page(0, 1, None, "tavily_search")
    for number in (10, 9, 2):
        write_csv(tmp_path / f"query_{number}.csv", [search, page(1, 2)])
    write_csv(tmp_path / "query_1.csv", [search])
    # Sites that may not be read: no column with texts at all.
    write_csv(tmp_path / "query_3.csv", [{k: v for k, v in page(1, 2).items() if k != "content"}] * 2)
    assert [stream.name for stream in load_crawler(tmp_path, words)] == ["crawler-2", "crawler-9", "crawler-10"]
    assert [stream.name for stream in load_crawler(tmp_path, words, limit=1)] == ["crawler-2"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"type": "page_scrape", "content": "x"}], "column endTime is missing"),
        ([page(0, 1), {**page(0, 1), "endTime": "soon"}], "endTime 'soon' is no number"),
        ([page(0, 1), {**page(0, 1), "endTime": "nan"}], "endTime 'nan' is no finite number"),
    ],
)
def test_a_bad_crawl_is_named(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    write_csv(tmp_path / "query_1.csv", rows)
    with pytest.raises(InvalidTrace, match=f"query_1.csv: {message}"):
        load_crawler(tmp_path, words)


def test_a_folder_without_crawls_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidTrace, match=r"no file query_<id>.csv with pages in it"):
        load_crawler(tmp_path, words)


def search_files(folder: Path, pools: list[str]) -> Path:
    rows = [
        {"StartTime_us": 100 * i, "EndTime_us": 100 * i + 500_000, "StartIteration": i, "PipelinePool": pool}
        for i, pool in enumerate(pools)
    ]
    write_csv(folder / "_L10000_W8_query3_pipeline_trace.csv", rows)
    queries = folder / "query_trace_map_5k.json"
    queries.write_text(json.dumps({"3": {"query": "?", "trace_file": "res/_L10000_W8_query3_pipeline_trace.csv"}}))
    return queries


def test_pools_of_a_search_replace_one_another(tmp_path: Path) -> None:
    queries = search_files(tmp_path, ["(11, 12)", "(11, 13, 99)", "(11,)"])
    (tmp_path / "retrieved_corpus_content.part.0.json").write_text(json.dumps({"11": "a b c", "12": "a"}))
    (tmp_path / "retrieved_corpus_content.part.1.json").write_text(json.dumps({"13": "a b"}))
    corpus = load_corpus(tmp_path, words)
    assert corpus == {11: 3, 12: 1, 13: 2}
    (stream,) = load_anns(tmp_path, queries, corpus)
    question = Piece(0, FRAME_TOKENS)
    assert [message.after_s for message in stream.messages] == pytest.approx([0.5, 1.0, 1.5])
    assert [message.replaces for message in stream.messages] == [False, True, True]
    assert stream.messages[0].pieces == (Piece(12, 3), Piece(13, 1), question)
    # A document that is not in the corpus is left out.
    assert stream.messages[1].pieces == (Piece(12, 3), Piece(14, 2), question)
    assert stream.final_pieces == (Piece(12, 3), question)


def test_a_bad_search_is_named(tmp_path: Path) -> None:
    queries = search_files(tmp_path, ["__import__('os')"])
    with pytest.raises(InvalidTrace, match="is no list of document ids"):
        load_anns(tmp_path, queries, {})
    queries.write_text("[]")
    with pytest.raises(InvalidTrace, match="not a map of query ids"):
        load_anns(tmp_path, queries, {})
    with pytest.raises(InvalidTrace, match="no file retrieved_corpus_content"):
        load_corpus(tmp_path)


def test_tokens_are_estimated_by_length() -> None:
    assert estimated_tokens("") == 1
    assert estimated_tokens("x" * 440) == 100
