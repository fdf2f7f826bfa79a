"""Streaming prefill: send a prompt while its context is still arriving.

>>> with Client() as client:                                              # doctest: +SKIP
...     stream = client.open(prompt="Context: {context}\\nQuestion: why?")
...     for page in crawl():
...         stream.append(page)
...     stream.finish()
...     print(stream.answer().text)
"""

from stream2llm.async_client import AsyncClient, AsyncStream
from stream2llm.client import Client, Stream
from stream2llm.composing import Answer
from stream2llm.connecting import RedisTLS
from stream2llm.documents import stream_documents
from stream2llm.entries import ContextItem, StreamOptions
from stream2llm.errors import (
    ErrorCode,
    InvalidRequest,
    NoAnswer,
    Overloaded,
    RedisRefused,
    ReplyGone,
    ServerFailed,
    Stream2LLMError,
    StreamError,
    StreamTimedOut,
    Unreachable,
)
from stream2llm.events import Accepted, Done, ErrorEvent, Event, Prefill, Token

__all__ = [
    "Accepted",
    "Answer",
    "AsyncClient",
    "AsyncStream",
    "Client",
    "ContextItem",
    "Done",
    "ErrorCode",
    "ErrorEvent",
    "Event",
    "InvalidRequest",
    "NoAnswer",
    "Overloaded",
    "Prefill",
    "RedisRefused",
    "RedisTLS",
    "ReplyGone",
    "ServerFailed",
    "Stream",
    "Stream2LLMError",
    "StreamError",
    "StreamOptions",
    "StreamTimedOut",
    "Token",
    "Unreachable",
    "stream_documents",
]
