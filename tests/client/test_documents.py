"""Documents that become chunks as they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm import AsyncClient, ContextItem, stream_documents
from stream2llm.documents import Once, document_id, id_and_text
from stream2llm.entries import Append, Cancel, Finish, Open
from stream2llm.settings import MAX_ID_CHARS

PROMPT = "Context: {context}"


@given(st.lists(st.tuples(st.none() | st.text(max_size=200), st.text())))
def test_each_document_passes_once_with_an_id_that_fits(documents: list[tuple[str | None, str]]) -> None:
    once = Once()
    fresh = once.fresh(documents)
    assert once.fresh(documents) == []
    names = [name for name, _ in fresh]
    assert len(names) == len(set(names))
    assert all(1 <= len(name) <= MAX_ID_CHARS for name in names)
    assert {text for _, text in fresh} <= {text for _, text in documents if text}
    assert set(names) == {document_id(*document) for document in documents if document[1]}


def test_an_id_of_the_documents_own_is_kept_if_it_fits() -> None:
    assert document_id("a", "text") == "a"
    assert document_id(None, "text") == document_id("", "text") != "text"
    assert document_id("x" * 129, "text") == document_id("x" * 129, "other")
    assert len(document_id("x" * 129, "text")) == 32


def test_what_is_no_document_is_named() -> None:
    assert id_and_text("a") == (None, "a")
    assert id_and_text(("i", "a")) == id_and_text(ContextItem("i", "a")) == ("i", "a")
    for wrong in (5, ("a",), ContextItem("i"), None):
        with pytest.raises(TypeError, match="a document is a text"):
            id_and_text(wrong)  # type: ignore[arg-type]


@pytest.mark.redis
def test_each_document_is_appended_before_the_next_one_comes(server: Any, respond: Callable[..., Any]) -> None:
    responder = respond()

    async def pages() -> AsyncIterator[str | tuple[str, str]]:
        for number in range(3):
            # What came before is on its way already.
            while len([entry for entry in responder.entries if isinstance(entry, Append)]) < number:
                await asyncio.sleep(0.01)
            yield (f"p{number}", f"page {number}") if number else "page 0"

    async def body() -> None:
        async with AsyncClient(server.url) as client:
            stream = await stream_documents(pages(), client=client, prompt=PROMPT, params={"max_tokens": 5})
            assert (await stream.answer()).text.startswith('<"page 0|page 1|page 2')
            stream = await stream_documents(["a", ContextItem("i", "b")], client=client, prompt=PROMPT, stream="mine")
            assert stream.name == "mine"
            assert (await stream.answer()).text.startswith('<"a|b')

    asyncio.run(body())
    assert [type(entry) for entry in responder.entries[:5]] == [Open, Append, Append, Append, Finish]
    assert [entry.chunk for entry in responder.entries[2:4]] == ["p1", "p2"]


@pytest.mark.redis
def test_a_source_that_fails_cancels_the_stream(server: Any, respond: Callable[..., Any]) -> None:
    responder = respond()

    async def pages() -> AsyncIterator[str]:
        yield "page"
        raise OSError("the crawler is gone")

    async def body() -> None:
        async with AsyncClient(server.url) as client:
            with pytest.raises(OSError, match="the crawler is gone"):
                await stream_documents(pages(), client=client, prompt=PROMPT, stream="failed")
            answer = await client.stream("failed").answer()
            assert answer.finish_reason == "cancelled"

    asyncio.run(body())
    assert isinstance(responder.entries[-1], Cancel)
