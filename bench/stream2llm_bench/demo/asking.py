"""Asks one question about crawled pages, in each of four ways, and notes when the first token arrives."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from stream2llm import Client, ContextItem, Stream
from stream2llm.composing import AnswerBuilder
from stream2llm.events import Token
from stream2llm_bench.demo.crawling import Fetched, crawl
from stream2llm_bench.demo.ranking import rank
from stream2llm_bench.failing import Unavailable
from stream2llm_bench.progress import Say

PROMPT = "Answer the question in one short sentence, from this documentation:\n\n{context}\n\nQuestion: "
ANSWER_TOKENS = 40
SILENCE_S = 90.0
"""Longest wait for the next event of an answer."""


class Mode(StrEnum):
    """How context changes: pieces are added, or the whole ranked list is replaced."""

    APPEND = "append"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer, and the seconds from the start of the crawl until the asker saw its first token."""

    text: str
    first_token_s: float


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks `question` about the pages at `urls`, fetched in `order`."""

    client: Client
    urls: Sequence[str]
    order: Sequence[int]
    question: str
    say: Say

    def ask(self, mode: Mode, *, streaming: bool) -> Asked:
        """Crawl and ask: streaming hands every page on as it arrives, else all go together after the last one.

        Raises Unavailable if the answer holds no token, StreamError if the pool refuses the stream.
        """
        started = time.monotonic()
        context = Context(self.question)
        if streaming:
            stream = self._open()
            for page in crawl(self.urls, self.order):
                self.say(f"    {page.after_s:5.1f} s  {page.url}")
                context.add(page)
                if mode is Mode.APPEND:
                    stream.append(page.text, chunk=name_of(page))
                else:
                    stream.update(context.ranked_items())
        else:
            pages = []
            for page in crawl(self.urls, self.order):
                self.say(f"    {page.after_s:5.1f} s  {page.url}")
                pages.append(page)
                context.add(page)
            stream = self._open()
            if mode is Mode.APPEND:
                for page in pages:
                    stream.append(page.text, chunk=name_of(page))
            else:
                stream.update(context.ranked_items())
        stream.finish()
        builder, first_s = AnswerBuilder(), None
        for event in stream.events(timeout_s=SILENCE_S, accept_timeout_s=SILENCE_S):
            if first_s is None and isinstance(event, Token):
                first_s = time.monotonic() - started
            builder.take(event)
        if first_s is None:
            raise Unavailable("the model answered without a single token")
        return Asked(builder.complete().text, first_s)

    def warm_up(self) -> None:
        """One short answer, so that the first measured one does not pay for first times."""
        stream = self._open()
        stream.append(self.question)
        stream.finish()
        stream.answer(timeout_s=SILENCE_S, accept_timeout_s=SILENCE_S)

    def _open(self) -> Stream:
        return self.client.open(
            messages=[{"role": "user", "content": PROMPT + self.question}],
            params={"max_tokens": ANSWER_TOKENS, "temperature": 0},
        )


class Context:
    """The pages so far, ranked anew with each."""

    def __init__(self, question: str) -> None:
        self._question = question
        self._pages: dict[int, Fetched] = {}
        self._sent: set[int] = set()

    def add(self, page: Fetched) -> None:
        self._pages[page.index] = page

    def ranked_items(self) -> list[ContextItem]:
        """Every page, best first: the context list of an update. A page that was in an earlier list goes by its id."""
        texts = {index: page.text for index, page in sorted(self._pages.items())}
        items = [
            ContextItem(name_of(self._pages[index]), None if index in self._sent else texts[index])
            for index in rank(self._question, texts)
        ]
        self._sent |= self._pages.keys()
        return items


def name_of(page: Fetched) -> str:
    """The id of a page as chunk and as context item."""
    return f"page-{page.index}"


def search_order(ranking: Sequence[int], seed: int) -> list[int]:
    """The order in which a search engine lists pages before it has read them: nearly the final ranking.

    Every page is within two places of its rank, so an update that moves it up leaves what is above as it was.
    """
    rng = random.Random(seed)
    guessed = {page: place + rng.uniform(0, 2) for place, page in enumerate(ranking)}
    return sorted(ranking, key=lambda page: guessed[page])
