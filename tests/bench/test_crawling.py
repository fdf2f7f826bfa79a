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
    page_delays,
    sections,
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


def test_sections_with_prose_become_pages() -> None:
    markdown = (
        f"# Title\n\n{PROSE}\n\n```sh\n# no heading\n```\n\n## Short\n\nToo short.\n\n## Next one\n\n{PROSE * 9}\n"
    )
    first, second = sections("readme", markdown)
    assert (first.path, first.title) == ("/readme/title", "Title")
    assert first.text == PROSE.strip()
    assert second.path == "/readme/next-one"
    assert second.text.endswith("streams.")
    assert len(second.text) <= PAGE_CHARS


def test_tables_lists_and_code_are_no_prose() -> None:
    (page,) = sections("x", f"# T\n\n| a | b |\n|---|---|\n\n- one\n- two\n\n   \n\n{PROSE}\n\n```\ncode\n```\n")
    assert page.text == PROSE.strip()


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
    assert all(150 <= len(page.text) <= PAGE_CHARS for page in pages)


def test_too_few_pages_are_named(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"# T\n\n{PROSE}\n")
    with pytest.raises(Unavailable, match="has 1 documentation pages; the demo needs 2"):
        load_pages(tmp_path, 2)
