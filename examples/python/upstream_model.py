"""One model's answer is another's context: it is prefilled word by word while the first model still writes.

    python examples/python/upstream_model.py ["Write a short story."] ["Summarise it in one sentence."]

The first model is any server that speaks OpenAI's chat completions, by default the pool's own, through its router.
Environment: OPENAI_BASE_URL (http://127.0.0.1:8080/v1), OPENAI_API_KEY, OPENAI_MODEL (the server's first),
REDIS_URL (redis://127.0.0.1:6379), POOL (default/default), TENANT (default).
"""

import asyncio
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

from stream2llm import AsyncClient, Stream2LLMError, stream_documents

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1").rstrip("/")
PIECE_CHARS = 40
"""Tokens are gathered to about so much text: a chunk for each would cost more than it brings."""


def call(path: str, body: dict[str, Any] | None = None) -> Any:
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.urlopen(urllib.request.Request(BASE_URL + path, data, headers), timeout=120)


def upstream(task: str) -> Iterator[str]:
    """The first model's answer, in pieces, as they come."""
    model = os.environ.get("OPENAI_MODEL")
    if not model:
        with call("/models") as answer:
            model = json.load(answer)["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": task}], "stream": True, "max_tokens": 256}
    piece = ""
    with call("/chat/completions", body) as answer:
        for line in answer:
            data = line.decode().removeprefix("data: ").strip()
            if not line.startswith(b"data: ") or data == "[DONE]":
                continue
            for choice in json.loads(data)["choices"]:
                piece += choice["delta"].get("content") or ""
            if len(piece) >= PIECE_CHARS:
                yield piece
                piece = ""
    if piece:
        yield piece


async def pieces(task: str) -> AsyncIterator[str]:
    """The same without holding up the event loop."""
    source = upstream(task)
    while (piece := await asyncio.to_thread(next, source, None)) is not None:
        print(piece, end="", file=sys.stderr, flush=True)
        yield piece


async def main(task: str = "Write a short story.", question: str = "Summarise it in one sentence.") -> None:
    async with AsyncClient(
        os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"),
        pool=os.environ.get("POOL", "default/default"),
        tenant=os.environ.get("TENANT", "default"),
    ) as client:
        stream = await stream_documents(
            pieces(task),
            client=client,
            messages=[{"role": "user", "content": f"{{context}}\n\n{question}"}],
            params={"max_tokens": 64, "temperature": 0},
            # The pieces are one text, so nothing comes between them.
            options={"separator": ""},
        )
        print(file=sys.stderr)
        print((await stream.answer(timeout_s=120)).text)


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:]))
    except urllib.error.HTTPError as error:
        sys.exit(f"{error}: {error.read().decode(errors='replace')}")
    except (Stream2LLMError, OSError) as error:
        sys.exit(str(error))
