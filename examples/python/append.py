"""Pages are appended as a crawler finds them; the model prefills each while the next is on its way.

Environment: STREAM2LLM_REDIS (redis://127.0.0.1:6379), STREAM2LLM_POOL (default/default).
"""

import os
import sys
import time

from stream2llm import Client, Token


def crawl() -> list[str]:
    """Stands for a crawler that takes its time."""
    pages = []
    for number in range(1, 4):
        time.sleep(0.2)
        pages.append(f"Page {number}: a KV block holds the keys and values of {16 * number} tokens.")
    return pages


with Client(
    os.environ.get("STREAM2LLM_REDIS", "redis://127.0.0.1:6379"),
    pool=os.environ.get("STREAM2LLM_POOL", "default/default"),
) as client:
    stream = client.open(
        messages=[{"role": "user", "content": "Context:\n{context}\n\nQuestion: what does a KV block hold?"}],
        params={"max_tokens": 32, "temperature": 0},
    )
    for page in crawl():
        stream.append(page)
    stream.finish()
    for event in stream.events(timeout_s=60):
        if isinstance(event, Token):
            print(event.text, end="", flush=True)
    print(file=sys.stdout)
