"""LangChain's own classes, with retrievers that take their time, on a real Redis."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from stream2llm import AsyncClient, Client
from stream2llm.entries import Append
from stream2llm.integrations.langchain import AsyncStreamDocuments, StreamDocuments, StreamingRetriever

pytestmark = pytest.mark.redis
PROMPT = "Context: {context}"


class Shelf(BaseRetriever):
    """Finds what it holds, once `gate` allows."""

    documents: list[Document]
    gate: Any = None

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        if self.gate is not None:
            assert self.gate.wait(30)
        return self.documents


class Both(BaseRetriever):
    """A retriever made of others, as an ensemble is."""

    parts: list[BaseRetriever]

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        config: Any = {"callbacks": run_manager.get_child()}
        return [document for part in self.parts for document in part.invoke(query, config)]


def document(text: str, identifier: str | None = None) -> Document:
    return Document(page_content=text, id=identifier)


def chunks(responder: Any) -> list[tuple[str | None, str | None]]:
    return [(entry.chunk, entry.text) for entry in responder.entries if isinstance(entry, Append)]


def until(condition: Callable[[], bool]) -> None:
    done = threading.Event()
    for _ in range(3000):
        if condition():
            return
        done.wait(0.01)
    raise AssertionError("not within 30 s")


def test_a_fast_retriever_does_not_wait_for_a_slow_one(server: Any, respond: Callable[..., Any]) -> None:
    responder, gate = respond(), threading.Event()
    slow = Shelf(documents=[document("slow", "s"), document("both", "b")], gate=gate)
    fast = Shelf(documents=[document("fast"), document("both", "b")])

    def open_gate() -> None:
        until(lambda: len(chunks(responder)) == 2)
        gate.set()

    opener = threading.Thread(target=open_gate)
    opener.start()
    with Client(server.url) as client:
        stream = client.open(prompt=PROMPT)
        found = StreamingRetriever(retrievers=[slow, fast], into=stream).invoke("query")
        opener.join()
        stream.finish()
        assert stream.answer().text.startswith('<"fast|both|slow')
    assert [item.page_content for item in found] == ["fast", "both", "slow"]
    assert [name for name, _ in chunks(responder)][1:] == ["b", "s"]


def test_awaited_retrievers(server: Any, respond: Callable[..., Any]) -> None:
    responder = respond()

    async def body() -> None:
        async with AsyncClient(server.url) as client:
            stream = await client.open(prompt=PROMPT)
            retriever = StreamingRetriever(retrievers=[Shelf(documents=[document("one", "1")])], into=stream)
            assert [item.page_content for item in await retriever.ainvoke("query")] == ["one"]
            # Asked again, it finds the same and sends nothing twice.
            assert await retriever.ainvoke("query") == []
            with pytest.raises(TypeError, match="give a Stream to invoke"):
                retriever.invoke("query")
            callback = AsyncStreamDocuments(stream)
            await Shelf(documents=[document("two", "2")]).ainvoke("query", {"callbacks": [callback]})
            await stream.finish()
            await stream.answer()

    asyncio.run(body())
    assert chunks(responder) == [("1", "one"), ("2", "two")]


def test_a_callback_sees_the_parts_of_a_retriever_and_sends_each_document_once(
    server: Any, respond: Callable[..., Any]
) -> None:
    responder, gate = respond(), threading.Event()
    parts: list[BaseRetriever] = [
        Shelf(documents=[document("first", "1")]),
        Shelf(documents=[document("second", "2"), document("first", "1")], gate=gate),
    ]
    with Client(server.url) as client:
        stream = client.open(prompt=PROMPT)
        chain = threading.Thread(
            target=lambda: Both(parts=parts).invoke("query", {"callbacks": [StreamDocuments(stream)]})
        )
        chain.start()
        until(lambda: chunks(responder) == [("1", "first")])
        gate.set()
        chain.join()
        stream.finish()
        assert stream.answer().text.startswith('<"first|second')
    assert chunks(responder) == [("1", "first"), ("2", "second")]


def test_trouble_of_the_stream_is_raised_in_the_chain(server: Any) -> None:
    from stream2llm.errors import InvalidRequest

    with Client(server.url) as client:
        stream = client.open(prompt=PROMPT)
        too_long = Shelf(documents=[document("x" * (1 << 20) + "x")])
        with pytest.raises(InvalidRequest, match="chunk_too_large"):
            too_long.invoke("query", {"callbacks": [StreamDocuments(stream)]})
        with pytest.raises(InvalidRequest, match="chunk_too_large"):
            StreamingRetriever(retrievers=[too_long], into=stream).invoke("query")
