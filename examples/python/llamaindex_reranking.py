"""LlamaIndex: nodes are prefilled as they are found, and again in the re-ranker's order, of which what stayed in front
keeps its KV cache.

    python examples/python/llamaindex_reranking.py ["What is a KV block?"]

Needs stream2llm[llamaindex].
Environment: REDIS_URL (redis://127.0.0.1:6379), POOL (default/default), TENANT (default).
"""

import os
import sys
import time

from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from stream2llm import Client, Stream2LLMError
from stream2llm.integrations.llamaindex import StreamNodes

FOUND = [
    NodeWithScore(node=TextNode(id_="a", text="A KV block holds the keys and values of 16 tokens."), score=0.9),
    NodeWithScore(node=TextNode(id_="b", text="Blocks are shared by prompts that begin alike."), score=0.5),
    NodeWithScore(node=TextNode(id_="c", text="A block that is full is hashed."), score=0.7),
]


class ByScore(BaseNodePostprocessor):
    """Stands for a re-ranker, which takes its time."""

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        time.sleep(0.3)
        return sorted(nodes, key=lambda node: node.score or 0.0, reverse=True)


def main(question: str = "What does a KV block hold?") -> None:
    with Client(
        os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"),
        pool=os.environ.get("POOL", "default/default"),
        tenant=os.environ.get("TENANT", "default"),
    ) as client:
        stream = client.open(
            messages=[{"role": "user", "content": f"Answer from the context.\n\n{{context}}\n\nQuestion: {question}"}],
            params={"max_tokens": 64, "temperature": 0},
        )
        nodes, sending = FOUND, StreamNodes(into=stream)
        # As in a query engine: node_postprocessors=[sending, reranker, sending].
        for postprocessor in (sending, ByScore(), sending):
            nodes = postprocessor.postprocess_nodes(nodes, query_str=question)
        stream.finish()
        print(stream.answer(timeout_s=60).text)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Stream2LLMError as error:
        sys.exit(str(error))
