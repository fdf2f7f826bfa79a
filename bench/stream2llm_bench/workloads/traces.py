"""Reads the traces that the paper's artifact publishes, so that its data can take the place of the generators.

Formats: a CSV file for each query. Rows of a crawl have `type` (`tavily_search` or `page_scrape`), `query`, `content`,
`startTime` and `endTime` (seconds). Rows of a vector search have `StartTime_us`, `EndTime_us` and `PipelinePool`, the
document ids in the order of the prompt; a JSON file maps query ids to files, and others map document ids to texts.
"""

from __future__ import annotations

import ast
import csv
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stream2llm_bench.workloads.streams import Message, Piece, Stream

TokensOf = Callable[[str], int]
FRAME_TOKENS = 40
"""Template and question, where only their presence matters."""
CHARACTERS_PER_TOKEN = 4.4
SEARCH, PAGE = "tavily_search", "page_scrape"


class InvalidTrace(ValueError):
    """A trace cannot be read; the message names the file and what is wrong with it."""


def estimated_tokens(text: str) -> int:
    """About what a tokenizer makes of English text; for exact figures give the loaders a tokenizer's count."""
    return max(round(len(text) / CHARACTERS_PER_TOKEN), 1)


def load_crawler(folder: Path, tokens_of: TokensOf = estimated_tokens, limit: int | None = None) -> list[Stream]:
    """The crawls in `folder` (`query_<id>.csv`), by id, `limit` at most. Those without pages or without page texts are
    left out, as the artifact does. Raises InvalidTrace, also if none is left."""
    streams: list[Stream] = []
    for path in sorted(folder.glob("query_*.csv"), key=_number):
        if limit is not None and len(streams) >= limit:
            break
        stream = _crawl(path, tokens_of)
        if stream is not None:
            streams.append(stream)
    if not streams:
        raise InvalidTrace(f"{folder}: no file query_<id>.csv with pages in it")
    return streams


def _crawl(path: Path, tokens_of: TokensOf) -> Stream | None:
    rows = _rows(path, ("type", "endTime"))
    if not rows or "content" not in rows[0]:
        return None
    rows.sort(key=lambda row: _float(path, row, "endTime"))
    messages: list[Message] = []
    # The artifact's replayer leaves out the first row, which is the search as a rule.
    for row in rows[1:]:
        if row["type"] != PAGE:
            continue
        tokens = tokens_of(f"{row['content'] or ''}\n")
        messages.append(Message(_float(path, row, "endTime"), (Piece(len(messages), tokens),)))
    if not messages:
        return None
    last = messages[-1]
    end = Piece(len(messages), FRAME_TOKENS)
    messages[-1] = Message(last.after_s, (*last.pieces, end))
    return Stream(f"crawler-{_number(path)}", tuple(messages))


def load_anns(
    folder: Path,
    query_map: Path,
    corpus: Mapping[int, int],
    limit: int | None = None,
) -> list[Stream]:
    """The vector searches named by `query_map` (query id → `{"trace_file": …}`), in the order of their ids, `limit` at
    most; their files are in `folder`. corpus: document id → tokens; documents that are not in it are left out. Raises
    InvalidTrace."""
    streams: list[Stream] = []
    try:
        by_id: Mapping[str, Any] = json.loads(query_map.read_text(encoding="utf-8"))
        ordered = sorted(by_id.items(), key=lambda item: int(item[0]))
        files = [(query_id, folder / Path(entry["trace_file"]).name) for query_id, entry in ordered]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidTrace(f"{query_map}: not a map of query ids to trace files ({error!r})") from None
    for query_id, path in files[:limit]:
        messages = list(_search(path, corpus))
        if messages:
            streams.append(Stream(f"anns-{query_id}", tuple(messages)))
    if not streams:
        raise InvalidTrace(f"{query_map}: no query with rows")
    return streams


def load_corpus(folder: Path, tokens_of: TokensOf = estimated_tokens) -> dict[int, int]:
    """Document id → tokens, from `retrieved_corpus_content.part.*.json` in `folder`. Raises InvalidTrace."""
    corpus: dict[int, int] = {}
    for path in sorted(folder.glob("retrieved_corpus_content.part.*.json")):
        try:
            texts = json.loads(path.read_text(encoding="utf-8"))
            corpus.update({int(document): tokens_of(str(text)) for document, text in texts.items()})
        except (OSError, ValueError, AttributeError) as error:
            raise InvalidTrace(f"{path}: not a map of document ids to texts ({error})") from None
    if not corpus:
        raise InvalidTrace(f"{folder}: no file retrieved_corpus_content.part.*.json")
    return corpus


def _search(path: Path, corpus: Mapping[int, int]) -> Iterator[Message]:
    when_s = 0.0
    for number, row in enumerate(_rows(path, ("StartTime_us", "EndTime_us", "PipelinePool"))):
        when_s += (_float(path, row, "EndTime_us") - _float(path, row, "StartTime_us")) / 1e6
        try:
            pool = ast.literal_eval(row["PipelinePool"])
            documents = [int(document) for document in (pool if isinstance(pool, tuple | list | set) else (pool,))]
        except (ValueError, SyntaxError, TypeError):
            raise InvalidTrace(
                f"{path}: PipelinePool {row['PipelinePool'][:80]!r} is no list of document ids"
            ) from None
        pieces = [Piece(document + 1, corpus[document]) for document in documents if document in corpus]
        yield Message(when_s, (*pieces, Piece(0, FRAME_TOKENS)), replaces=number > 0)


def _rows(path: Path, needed: tuple[str, ...]) -> list[dict[str, str]]:
    csv.field_size_limit(sys.maxsize)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidTrace(f"{path}: cannot be read ({error})") from None
    missing = [name for name in needed if rows and name not in rows[0]]
    if missing:
        raise InvalidTrace(f"{path}: column {', '.join(missing)} is missing")
    return rows


def _float(path: Path, row: Mapping[str, str], column: str) -> float:
    try:
        value = float(row[column])
    except (TypeError, ValueError):
        raise InvalidTrace(f"{path}: {column} {row[column]!r} is no number") from None
    if not math.isfinite(value):
        raise InvalidTrace(f"{path}: {column} {row[column]!r} is no finite number")
    return value


def _number(path: Path) -> int:
    found = re.search(r"\d+", path.stem)
    return int(found.group()) if found else 0


def load(workload: str, folder: Path, limit: int | None = None) -> list[Stream]:
    """The traces of one workload in `folder`, laid out as the artifact's `data/crawl/traces/simpleQA_ALL` or
    `data/anns` (`res/`, `query_trace_map_5k.json`, the corpus). Tokens are estimated. Raises InvalidTrace."""
    if workload == "crawler":
        return load_crawler(folder, limit=limit)
    return load_anns(folder / "res", folder / "query_trace_map_5k.json", load_corpus(folder), limit)
