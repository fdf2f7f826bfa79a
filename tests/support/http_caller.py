"""An HTTP client of one tenant, and reading server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx

from stream2llm.keys import PoolKeys

POOL = "tests/gateway"
KEYS = PoolKeys(POOL)


class Caller(httpx.Client):
    """An HTTP client of one tenant."""

    def __init__(self, url: str, token: str | None) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        super().__init__(base_url=url, headers=headers, timeout=30)

    def events(self, stream: str, after: str | None = None, path: str | None = None) -> list[dict[str, Any]]:
        """All events of a reply from `after` on."""
        headers = {} if after is None else {"Last-Event-ID": after}
        with self.stream("GET", path or f"/v1/streams/{stream}/events", headers=headers) as answer:
            assert answer.status_code == 200, answer.read()
            return list(sse(answer.iter_lines()))


def sse(lines: Any) -> Iterator[dict[str, Any]]:
    """Parsed events of a server-sent event stream."""
    event: dict[str, Any] = {}
    for line in lines:
        if not line:
            if "data" in event:
                yield {**event, "data": json.loads(event["data"])}
            event = {}
            continue
        name, _, value = line.partition(": ")
        if name in ("id", "event", "data"):
            event[name] = value
