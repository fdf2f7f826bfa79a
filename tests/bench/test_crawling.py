"""The demo's small web: pages cut from Markdown, seeded delays, a crawler that really fetches."""

from __future__ import annotations

import math
import statistics
import urllib.error
from pathlib import Path

import pytest

from stream2llm_bench.demo.crawling import (
    MAX_DELAY_S,
    PAGE_CHARS,
    DocumentationServer,
    Page,
    crawl,
    cut_at_sentence,
    documentation_folder,
    load_pages,
    make_page,
    page_delays,
    text_of,
    to_html,
)
from stream2llm_bench.failing import Unavailable

PROSE = "A sentence that says something about streams. " * 5


def test_delays_are_a_function_of_the_seed() -> None:
    assert page_delays(3, 8) == page_delays(3, 8)
    assert page_delays(3, 8) != page_delays(4, 8)


def test_delays_have_the_measured_median_and_tail() -> None:
    delays_s = sorted(page_delays(1, 4000))
    assert math.isclose(statistics.median(delays_s), 0.7, abs_tol=0.05)
    assert math.isclose(delays_s[int(0.95 * 4000)], 3.08, abs_tol=0.3)
    assert delays_s[-1] == MAX_DELAY_S


def test_a_document_with_prose_becomes_a_page() -> None:
    page = make_page("readme", f"# Title\n\n{PROSE * 2}\n\n```sh\n# no heading\n```\n\n## Next\n\n{PROSE * 9}\n")
    assert page is not None
    assert (page.path, page.title) == ("/readme", "Title")
    assert page.text.startswith(PROSE)
    assert page.text.endswith("streams.")
    assert PAGE_CHARS - len(PROSE) <= len(page.text) <= PAGE_CHARS


def test_a_document_with_little_prose_is_no_page() -> None:
    assert make_page("short", "# Short\n\nToo short.\n") is None


def test_tables_and_code_are_no_prose_and_list_marks_go() -> None:
    table, items = "| a | b |\n|---|---|", f"- {PROSE}\n- {PROSE}\n\n1. {PROSE}"
    page = make_page("x", f"# T\n\n{table}\n\n{items}\n\n   \n\n```\ncode\n```\n")
    assert page is not None
    assert page.text == " ".join([PROSE.strip()] * 3)


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("One. Two.", "One. Two."),
        ("First one. Second one is longer.", "First one."),
        ("one two three four five six", "one two three four"),
    ],
)
def test_cut_at_sentence(text: str, cut: str) -> None:
    assert cut_at_sentence(text, 20) == cut


def test_text_survives_html() -> None:
    page = Page("/p", "R&D", "Uses `vLLM <b>` and **a & more** of [it](there.md).")
    assert text_of(to_html(page)) == "R&D\nUses vLLM <b> and a & more of it."


def test_the_crawler_fetches_over_http_in_the_given_order() -> None:
    pages = [Page(f"/p{i}", f"Page {i}", f"Text {i}.") for i in range(3)]
    with DocumentationServer(pages, [0.05, 0.0, 0.0]) as server:
        fetched = list(crawl(server.urls, [2, 0, 1]))
        assert [page.url for page in fetched] == [server.urls[i] for i in (2, 0, 1)]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            list(crawl([server.urls[0] + "x"]))
    assert [(page.index, page.text) for page in fetched] == [(i, f"Page {i}\nText {i}.") for i in (2, 0, 1)]
    assert fetched[1].after_s - fetched[0].after_s >= 0.05
    with pytest.raises(urllib.error.URLError):
        list(crawl(server.urls))


def test_this_project_has_enough_pages() -> None:
    pages = load_pages(documentation_folder(), 8)
    assert len({page.path for page in pages}) == 8
    assert all(500 <= len(page.text) <= PAGE_CHARS for page in pages)


def test_too_few_pages_are_named(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"# T\n\n{PROSE * 3}\n")
    with pytest.raises(Unavailable, match="has 1 documentation pages; the demo needs 2"):
        load_pages(tmp_path, 2)
