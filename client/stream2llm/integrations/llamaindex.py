"""LlamaIndex: what retrievers find goes into a stream's context the moment it is found, and in its new order after.

Needs `stream2llm[llamaindex]`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.bridge.pydantic import ConfigDict, PrivateAttr
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from stream2llm.async_client import AsyncStream
from stream2llm.client import Stream
from stream2llm.documents import Once, document_id
from stream2llm.entries import ContextItem


def _pair(node: NodeWithScore) -> tuple[str | None, str]:
    return node.node.node_id, node.node.get_content(metadata_mode=MetadataMode.LLM)


class StreamingRetriever(BaseRetriever):  # type: ignore[misc]
    """Asks several retrievers at once and appends what each finds as soon as it answers.

    Returns all nodes, without repetitions, in the order in which they came. into: a Stream for `retrieve`, an
    AsyncStream for `aretrieve`. Nothing is finished here: the stream may have other sources.
    """

    def __init__(self, retrievers: Sequence[BaseRetriever], into: Stream | AsyncStream, **options: Any) -> None:
        super().__init__(**options)
        if not retrievers:
            raise ValueError("retrievers must hold at least one retriever")
        self._retrievers, self._stream, self._once = list(retrievers), into, Once()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        stream = self._stream
        if not isinstance(stream, Stream):
            raise TypeError("an AsyncStream is for aretrieve; give a Stream to retrieve")
        found: list[NodeWithScore] = []
        with ThreadPoolExecutor(len(self._retrievers)) as pool:
            waiting = [pool.submit(retriever.retrieve, query_bundle) for retriever in self._retrievers]
            for answer in as_completed(waiting):
                for node in answer.result():
                    for name, text in self._once.fresh([_pair(node)]):
                        stream.append(text, chunk=name)
                        found.append(node)
        return found

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        stream = self._stream
        if not isinstance(stream, AsyncStream):
            raise TypeError("a Stream is for retrieve; give an AsyncStream to aretrieve")
        found: list[NodeWithScore] = []
        waiting = [asyncio.ensure_future(retriever.aretrieve(query_bundle)) for retriever in self._retrievers]
        try:
            for answer in asyncio.as_completed(waiting):
                for node in await answer:
                    for name, text in self._once.fresh([_pair(node)]):
                        await stream.append(text, chunk=name)
                        found.append(node)
        finally:
            for task in waiting:
                task.cancel()
        return found


class StreamNodes(BaseNodePostprocessor):  # type: ignore[misc]
    """Makes the nodes that reach it the stream's whole context, in their order; they go on unchanged.

    Put it behind a re-ranker, or between two: a node whose text has been sent goes by its id alone, and the KV cache of
    what stays the same in front is kept. into: a Stream, or an AsyncStream for `apostprocess_nodes`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)
    into: Stream | AsyncStream
    _sent: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def class_name(cls) -> str:
        return "StreamNodes"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if not isinstance(self.into, Stream):
            raise TypeError("an AsyncStream is for apostprocess_nodes; give a Stream to postprocess_nodes")
        texts = _texts(nodes)
        self.into.update(self._context(texts))
        self._sent |= texts
        return nodes

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if not isinstance(self.into, AsyncStream):
            raise TypeError("a Stream is for postprocess_nodes; give an AsyncStream to apostprocess_nodes")
        texts = _texts(nodes)
        await self.into.update(self._context(texts))
        self._sent |= texts
        return nodes

    def _context(self, texts: dict[str, str]) -> list[ContextItem]:
        return [ContextItem(name, None if self._sent.get(name) == text else text) for name, text in texts.items()]


def _texts(nodes: Sequence[NodeWithScore]) -> dict[str, str]:
    return {document_id(*pair): pair[1] for pair in map(_pair, nodes)}
