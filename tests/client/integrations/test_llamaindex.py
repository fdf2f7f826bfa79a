"""LlamaIndex's own classes, with retrievers that take their time, on a real Redis."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from stream2llm import AsyncClient, Client
from stream2llm.entries import Append, ContextItem, Update
from stream2llm.integrations.llamaindex import StreamingRetriever, StreamNodes

pytestmark = pytest.mark.redis
PROMPT = "Context: {context}"


class Shelf(BaseRetriever):  # type: ignore[misc]
    """Finds what it holds, once `gate` allows."""

    def __init__(self, nodes: list[NodeWithScore], gate: threading.Event | None = None) -> None:
        super().__init__()
        self._nodes, self._gate = nodes, gate

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self._gate is not None:
            assert self._gate.wait(30)
        return self._nodes


def node(name: str, text: str) -> NodeWithScore:
    return NodeWithScore(node=TextNode(id_=name, text=text), score=1.0)


def test_a_fast_retriever_does_not_wait_for_a_slow_one(server: Any, respond: Callable[..., Any]) -> None:
    responder, gate = respond(), threading.Event()
    slow, fast = Shelf([node("s", "slow"), node("b", "both")], gate), Shelf([node("f", "fast"), node("b", "both")])

    def chunks() -> list[tuple[str | None, str | None]]:
        return [(entry.chunk, entry.text) for entry in responder.entries if isinstance(entry, Append)]

    def open_gate() -> None:
        for _ in range(3000):
            if len(chunks()) == 2:
                break
            gate.wait(0.01)
        gate.set()

    opener = threading.Thread(target=open_gate)
    opener.start()
    with Client(server.url) as client:
        stream = client.open(prompt=PROMPT)
        found = StreamingRetriever([slow, fast], stream).retrieve("query")
        opener.join()
        stream.finish()
        assert stream.answer().text.startswith('<"fast|both|slow')
    assert [item.node.node_id for item in found] == ["f", "b", "s"]
    assert chunks() == [("f", "fast"), ("b", "both"), ("s", "slow")]
    with pytest.raises(ValueError, match="at least one retriever"):
        StreamingRetriever([], stream)


def test_a_new_order_is_sent_by_ids_and_new_texts_only(server: Any, respond: Callable[..., Any]) -> None:
    responder = respond()
    with Client(server.url) as client:
        stream = client.open(prompt=PROMPT)
        sent = StreamNodes(into=stream)
        first = [node("a", "A"), node("b", "B")]
        assert sent.postprocess_nodes(first) == first
        second = [node("b", "B"), node("c", "C"), node("a", "changed")]
        assert sent.postprocess_nodes(second, query_str="query") == second
        stream.finish()
        assert stream.answer().text.startswith('<"B|C|changed')
    updates = [entry.context for entry in responder.entries if isinstance(entry, Update)]
    assert updates == [
        (ContextItem("a", "A"), ContextItem("b", "B")),
        (ContextItem("b"), ContextItem("c", "C"), ContextItem("a", "changed")),
    ]


def test_awaited(server: Any, respond: Callable[..., Any]) -> None:
    respond()

    async def body() -> None:
        async with AsyncClient(server.url) as client:
            stream = await client.open(prompt=PROMPT)
            retriever = StreamingRetriever([Shelf([node("a", "A")]), Shelf([node("b", "B")])], stream)
            nodes = await retriever.aretrieve("query")
            assert sorted(item.node.node_id for item in nodes) == ["a", "b"]
            ordered = sorted(nodes, key=lambda item: str(item.node.node_id), reverse=True)
            assert await StreamNodes(into=stream).apostprocess_nodes(ordered) == ordered
            await stream.finish()
            assert (await stream.answer()).text.startswith('<"B|A')
            with pytest.raises(TypeError, match="give a Stream to retrieve"):
                retriever.retrieve("query")

    asyncio.run(body())
