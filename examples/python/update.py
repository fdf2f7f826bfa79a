"""A vector search that refines its result: the context is replaced as better documents turn up.

What stays at the front keeps its KV cache. Environment as in append.py.
"""

import asyncio
import os

from stream2llm import AsyncClient

ROUNDS = (
    [("a", "Swapping copies KV blocks to host memory."), ("b", "Cats sleep a lot.")],
    [("a", None), ("c", "Recomputing runs the prefill again.")],
    [("a", None), ("c", None), ("d", "The cheaper of the two depends on the length.")],
)


async def main() -> None:
    url = os.environ.get("STREAM2LLM_REDIS", "redis://127.0.0.1:6379")
    async with AsyncClient(url, pool=os.environ.get("STREAM2LLM_POOL", "default/default")) as client:
        stream = await client.open(
            messages=[{"role": "user", "content": "Context:\n{context}\n\nQuestion: swap or recompute?"}],
            params={"max_tokens": 32, "temperature": 0},
        )
        for version, documents in enumerate(ROUNDS):
            await asyncio.sleep(0.2)
            items = [{"id": name} if text is None else {"id": name, "text": text} for name, text in documents]
            await stream.update(items, version=version)
        await stream.finish()
        print((await stream.answer(timeout_s=60)).text)


asyncio.run(main())
