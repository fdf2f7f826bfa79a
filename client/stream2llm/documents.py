"""Documents into a stream as they arrive: one call, or piece by piece with what is there already left out."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from stream2llm import settings
from stream2llm.async_client import AsyncClient, AsyncStream
from stream2llm.entries import ContextItem, StreamOptions
from stream2llm.errors import Stream2LLMError

Document = str | tuple[str, str] | ContextItem
"""A text, or an id and a text. A second document with the same id changes nothing."""


async def stream_documents(
    documents: AsyncIterable[Document] | Iterable[Document],
    *,
    client: AsyncClient,
    messages: Sequence[Mapping[str, Any]] | None = None,
    prompt: str | None = None,
    params: Mapping[str, Any] | None = None,
    options: StreamOptions | Mapping[str, Any] | None = None,
    stream: str | None = None,
) -> AsyncStream:
    """Open a stream, append each document the moment it comes, and finish. Returns the stream, to read its answer.

    The keywords are those of `Client.open`. If `documents` raises, or this call is cancelled, the stream is cancelled.
    """
    opened = await client.open(messages=messages, prompt=prompt, params=params, options=options, stream=stream)
    try:
        async for document in _each(documents):
            identifier, text = id_and_text(document)
            await opened.append(text, chunk=identifier)
        await opened.finish()
    except BaseException:
        with contextlib.suppress(Stream2LLMError):
            await opened.cancel()
        raise
    return opened


async def _each(documents: AsyncIterable[Document] | Iterable[Document]) -> AsyncIterator[Document]:
    if isinstance(documents, AsyncIterable):
        async for document in documents:
            yield document
    else:
        for document in documents:
            yield document


def id_and_text(document: Document) -> tuple[str | None, str]:
    """Raises TypeError for what is no document."""
    if isinstance(document, str):
        return None, document
    if isinstance(document, ContextItem) and document.text is not None:
        return document.id, document.text
    if isinstance(document, tuple) and len(document) == 2:
        return document
    raise TypeError(
        f"a document is a text, an (id, text) pair or a ContextItem with a text, not {type(document).__name__}"
    )


def document_id(identifier: str | None, text: str) -> str:
    """An id for a chunk or a context item: the document's own if it fits, else a digest that is always the same."""
    if identifier and len(identifier) <= settings.MAX_ID_CHARS:
        return identifier
    return hashlib.sha256((identifier or text).encode("utf-8", "surrogatepass")).hexdigest()[:32]


class Once:
    """Lets each document through once, however many retrievers find it. Safe to share between threads."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def fresh(self, documents: Iterable[tuple[str | None, str]]) -> list[tuple[str, str]]:
        """The new ones, in order, each with the id that a chunk may have. Empty texts are none."""
        found = []
        with self._lock:
            for identifier, text in documents:
                name = document_id(identifier, text)
                if text and name not in self._seen:
                    self._seen.add(name)
                    found.append((name, text))
        return found
