"""Pages are appended as a crawler finds them; the model prefills each one while the next is on its way.

    python examples/python/append.py ["What is a KV block?" page1.txt page2.txt]

Environment: REDIS_URL (redis://127.0.0.1:6379), POOL (default/default), TENANT (default).
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from stream2llm import Client, ErrorEvent, Stream2LLMError, Token

PAGES = [f"Page {number}: a KV block holds the keys and values of {16 * number} tokens." for number in (1, 2, 3)]


def crawl(paths: tuple[str, ...]) -> Iterator[str]:
    """Stands for a crawler, which takes its time for each page."""
    for page in [Path(path).read_text(encoding="utf-8") for path in paths] or PAGES:
        time.sleep(0.2)
        yield page


def main(question: str = "What does a KV block hold?", *paths: str) -> None:
    with Client(
        os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"),
        pool=os.environ.get("POOL", "default/default"),
        tenant=os.environ.get("TENANT", "default"),
    ) as client:
        stream = client.open(
            messages=[{"role": "user", "content": f"Answer from the context.\n\n{{context}}\n\nQuestion: {question}"}],
            params={"max_tokens": 64, "temperature": 0},
        )
        for page in crawl(paths):
            stream.append(page)
        stream.finish()
        for event in stream.events(timeout_s=60):
            if isinstance(event, Token):
                print(event.text, end="", flush=True)
            elif isinstance(event, ErrorEvent):
                print(f"{event.code}: {event.message}", file=sys.stderr)
                if event.terminal:
                    sys.exit(1)
        print()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Stream2LLMError as error:
        sys.exit(str(error))
