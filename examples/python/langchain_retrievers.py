"""LangChain: two retrievers are asked at once, and what the fast one finds is prefilled while the slow one searches.

    python examples/python/langchain_retrievers.py ["What is a KV block?"]

Needs stream2llm[langchain].
Environment: REDIS_URL (redis://127.0.0.1:6379), POOL (default/default), TENANT (default).
"""

import os
import sys
import time

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from stream2llm import Client, Stream2LLMError
from stream2llm.integrations.langchain import StreamingRetriever


class Shelf(BaseRetriever):
    """Stands for a vector store or a search engine, which takes its time."""

    texts: list[str]
    seconds: float

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        time.sleep(self.seconds)
        return [Document(page_content=text) for text in self.texts]


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
        notes = Shelf(texts=["A KV block holds the keys and values of 16 tokens."], seconds=0.1)
        web = Shelf(
            texts=["Blocks are shared by prompts that begin alike.", "A block that is full is hashed."], seconds=0.5
        )
        documents = StreamingRetriever(retrievers=[web, notes], into=stream).invoke(question)
        print(f"{len(documents)} documents, the first: {documents[0].page_content}", file=sys.stderr)
        stream.finish()
        print(stream.answer(timeout_s=60).text)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Stream2LLMError as error:
        sys.exit(str(error))
