"""A search that refines its result: the context is replaced as better documents turn up.

    python examples/python/update.py

What stays at the front keeps its KV cache, and a document that was sent before is named by its id alone. Environment
as in append.py.
"""

import asyncio
import os
import sys

from stream2llm import AsyncClient, Stream2LLMError

DOCUMENTS = {
    "swap": "Swapping copies the KV blocks of a prompt to host memory and back.",
    "cats": "Cats sleep for most of the day.",
    "recompute": "Recomputing drops the KV blocks of a prompt and prefills it again.",
    "choice": "Which of the two is cheaper depends on the length of the prompt.",
}
ROUNDS = (("swap", "cats"), ("swap", "recompute"), ("swap", "recompute", "choice"))


async def main() -> None:
    async with AsyncClient(
        os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"),
        pool=os.environ.get("POOL", "default/default"),
        tenant=os.environ.get("TENANT", "default"),
    ) as client:
        stream = await client.open(
            messages=[{"role": "user", "content": "Context:\n{context}\n\nQuestion: swap or recompute?"}],
            params={"max_tokens": 64, "temperature": 0},
        )
        sent: set[str] = set()
        for version, found in enumerate(ROUNDS):
            await asyncio.sleep(0.2)
            await stream.update(
                [{"id": name} if name in sent else {"id": name, "text": DOCUMENTS[name]} for name in found],
                version=version,
            )
            sent.update(found)
        await stream.finish()
        print(await stream.answer(timeout_s=60))


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except Stream2LLMError as error:
        sys.exit(str(error))
