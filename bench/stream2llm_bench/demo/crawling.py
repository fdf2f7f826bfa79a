"""A small web: the project's own documentation behind a local HTTP server that answers as late as real sites do.

The crawler fetches page after page over HTTP and yields each as it arrives.
"""

from __future__ import annotations

import math
import random
import re
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

from stream2llm_bench.failing import Unavailable

MEDIAN_DELAY_S = 0.7
"""Of the gaps between two pages of a crawler, as measured by the Stream2LLM paper."""
DELAY_SIGMA = 0.9
"""Log-normal shape that puts the 95th percentile at 3.1 s, as in the same measurement."""
MAX_DELAY_S = 5.0
"""About that measurement's 99th percentile; keeps a demo short."""
PAGE_CHARS = 1300
"""About 300 tokens."""
MIN_PAGE_CHARS = 500
NO_PROSE = "|>!<[#"
"""First characters of tables, quotes, pictures, HTML, links and headings."""
LIST_MARK = re.compile(r"^\s*(?:[-*]|\d+\.) ", re.MULTILINE)
FETCH_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its path on the server, its title and its prose."""

    path: str
    title: str
    text: str


def page_delays(seed: int, pages: int) -> list[float]:
    """Seconds that the server takes for each page; a function of the seed, so that two crawls wait alike."""
    rng = random.Random(seed)
    return [min(rng.lognormvariate(math.log(MEDIAN_DELAY_S), DELAY_SIGMA), MAX_DELAY_S) for _ in range(pages)]


def documentation_folder() -> Path:
    """The checkout that this package runs from. Raises Unavailable where there is no documentation beside it."""
    checkout = Path(__file__).resolve().parents[3]
    if not (checkout / "docs").is_dir():
        raise Unavailable(f"no documentation at {checkout / 'docs'}: the demo crawls it and runs from a checkout")
    return checkout


def load_pages(checkout: Path, count: int) -> list[Page]:
    """One page for each document with enough prose, `count` in all: the README first, then the documentation.

    Raises Unavailable if there are fewer.
    """
    pages: list[Page] = []
    for document in [checkout / "README.md", *sorted((checkout / "docs").rglob("*.md"))]:
        if document.is_file() and (page := make_page(document.stem.lower(), document.read_text(encoding="utf-8"))):
            pages.append(page)
    if len(pages) < count:
        raise Unavailable(f"{checkout} has {len(pages)} documentation pages; the demo needs {count}")
    return pages[:count]


def make_page(name: str, markdown: str) -> Page | None:
    """The prose of a Markdown document, cut to about `PAGE_CHARS` at a sentence's end; None if there is too little."""
    without_code = re.sub(r"^```.*?^```$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    heading = re.search(r"^# (.+)$", without_code, flags=re.MULTILINE)
    paragraphs = [part.strip() for part in without_code.split("\n\n")]
    prose = " ".join(LIST_MARK.sub("", part) for part in paragraphs if part and part[0] not in NO_PROSE)
    text = cut_at_sentence(re.sub(r"\s+", " ", prose), PAGE_CHARS)
    if len(text) < MIN_PAGE_CHARS:
        return None
    return Page(f"/{name}", heading[1].strip() if heading else name, text)


def cut_at_sentence(text: str, chars: int) -> str:
    """`text`, or its longest run of whole sentences within `chars`; a first sentence beyond that is cut at a word."""
    if len(text) <= chars:
        return text
    end = max(text.rfind(mark, 0, chars) for mark in (". ", "? ", "! ", ".) "))
    return text[: end + 1] if end > 0 else text[:chars].rsplit(" ", 1)[0]


class DocumentationServer:
    """Serves pages as HTML on a free loopback port, each after its own delay. A context manager.

    Raises Unavailable if no port can be had.
    """

    def __init__(self, pages: Sequence[Page], delays_s: Sequence[float]) -> None:
        self._by_path = {page.path: (page, delay) for page, delay in zip(pages, delays_s, strict=True)}
        self._stopping = threading.Event()
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        except OSError as error:
            raise Unavailable(f"no port for the documentation server on 127.0.0.1: {error}") from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="documentation", daemon=True)

    @property
    def urls(self) -> list[str]:
        """One URL per page, in the order of the pages."""
        return [f"http://127.0.0.1:{self._server.server_port}{path}" for path in self._by_path]

    def __enter__(self) -> DocumentationServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        by_path, stopping = self._by_path, self._stopping

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path not in by_path:
                    self.send_error(404)
                    return
                page, delay_s = by_path[self.path]
                stopping.wait(delay_s)
                body = to_html(page).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: the demo reports what the crawler sees."""

        return Handler


def to_html(page: Page) -> str:
    """The page as a browser gets it."""
    from markdown_it import MarkdownIt

    content = MarkdownIt().render(f"# {page.title}\n\n{page.text}\n")
    title = page.title.replace("&", "&amp;").replace("<", "&lt;")
    return f"<!DOCTYPE html><html><head><title>{title}</title></head><body>{content}</body></html>"


class _TextOfBody(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "body":
            self._inside = True
        if tag in ("h1", "p"):
            self.blocks.append("")

    def handle_data(self, data: str) -> None:
        if self._inside and self.blocks:
            self.blocks[-1] += data


def text_of(html: str) -> str:
    """Headings and paragraphs of an HTML page, one a line."""
    parser = _TextOfBody()
    parser.feed(html)
    return "\n".join(" ".join(block.split()) for block in parser.blocks if block.strip())


@dataclass(frozen=True, slots=True)
class Fetched:
    """What the crawler brought home: which page, its text, and when it came (seconds after the crawl's start)."""

    index: int
    url: str
    text: str
    after_s: float


def crawl(urls: Sequence[str], order: Sequence[int] | None = None) -> Iterator[Fetched]:
    """Fetch the pages over HTTP, one after the other, and yield each as it arrives.

    `order` gives the indices into `urls`; all in turn by default. Raises urllib.error.URLError for a page that
    cannot be had.
    """
    started = time.monotonic()
    for index in range(len(urls)) if order is None else order:
        with urllib.request.urlopen(urls[index], timeout=FETCH_TIMEOUT_S) as response:
            text = text_of(response.read().decode("utf-8"))
        yield Fetched(index, urls[index], text, time.monotonic() - started)
