"""LangChain: what retrievers find goes into a stream's context the moment it is found.

Needs `stream2llm[langchain]`. The chain itself need not change: attach StreamDocuments (or AsyncStreamDocuments) as a
callback, or wrap several retrievers in a StreamingRetriever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackHandler,
    AsyncCallbackManagerForRetrieverRun,
    BaseCallbackHandler,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict, Field, PrivateAttr

from stream2llm.async_client import AsyncStream
from stream2llm.client import Stream
from stream2llm.documents import Once


def _pairs(documents: Sequence[Document]) -> list[tuple[str | None, str]]:
    return [(document.id, document.page_content) for document in documents]


class StreamDocuments(BaseCallbackHandler):
    """Appends what every retriever of a chain returns, each document once.

    Retrievers within a retriever count too, so an ensemble's parts reach the stream as each of them is ready.
    Errors of the stream are raised in the chain.
    """

    raise_error = True

    def __init__(self, stream: Stream) -> None:
        self._stream, self._once = stream, Once()

    def on_retriever_end(self, documents: Sequence[Document], **_: Any) -> None:
        for name, text in self._once.fresh(_pairs(documents)):
            self._stream.append(text, chunk=name)


class AsyncStreamDocuments(AsyncCallbackHandler):
    """As StreamDocuments, for chains that are awaited."""

    raise_error = True

    def __init__(self, stream: AsyncStream) -> None:
        self._stream, self._once = stream, Once()

    async def on_retriever_end(self, documents: Sequence[Document], **_: Any) -> None:
        for name, text in self._once.fresh(_pairs(documents)):
            await self._stream.append(text, chunk=name)


class StreamingRetriever(BaseRetriever):
    """Asks several retrievers at once and appends what each finds as soon as it answers.

    Returns all documents, without repetitions, in the order in which they came. into: a Stream for `invoke`, an
    AsyncStream for `ainvoke`. Nothing is finished here: the stream may have other sources.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    retrievers: list[BaseRetriever] = Field(min_length=1)
    into: Stream | AsyncStream
    _once: Once = PrivateAttr(default_factory=Once)

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        stream = self.into
        if not isinstance(stream, Stream):
            raise TypeError("an AsyncStream is for ainvoke; give a Stream to invoke")
        found: list[Document] = []
        config: Any = {"callbacks": run_manager.get_child()}
        with ThreadPoolExecutor(len(self.retrievers)) as pool:
            waiting = [pool.submit(retriever.invoke, query, config) for retriever in self.retrievers]
            for answer in as_completed(waiting):
                for document, name, text in self._fresh(answer.result()):
                    stream.append(text, chunk=name)
                    found.append(document)
        return found

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        stream = self.into
        if not isinstance(stream, AsyncStream):
            raise TypeError("a Stream is for invoke; give an AsyncStream to ainvoke")
        found: list[Document] = []
        config: Any = {"callbacks": run_manager.get_child()}
        waiting = [asyncio.ensure_future(retriever.ainvoke(query, config)) for retriever in self.retrievers]
        try:
            for answer in asyncio.as_completed(waiting):
                for document, name, text in self._fresh(await answer):
                    await stream.append(text, chunk=name)
                    found.append(document)
        finally:
            for task in waiting:
                task.cancel()
        return found

    def _fresh(self, documents: Sequence[Document]) -> list[tuple[Document, str, str]]:
        fresh = []
        for document in documents:
            for name, text in self._once.fresh(_pairs([document])):
                fresh.append((document, name, text))
        return fresh
