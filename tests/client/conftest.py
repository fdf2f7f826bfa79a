"""A stand-in for router and pod: it reads one tenant's ingress and answers each finish, by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stream2llm.entries import Append, Cancel, Finish, Open, Update, parse_entry
from stream2llm.events import Accepted, Done, ErrorEvent, Event, Token, encode
from stream2llm.keys import PoolKeys


class Responder:
    """Answers with the context in angle brackets, a token for each piece between blanks. `opened` is every open."""

    def __init__(self, server: Any, pool: str, tenant: str) -> None:
        self.keys, self.tenant = PoolKeys(pool), tenant
        self.opened: dict[str, Open] = {}
        self.entries: list[Any] = []
        self._known: dict[str, dict[str, str]] = {}
        self._context: dict[str, list[str]] = {}
        self._stop = threading.Event()
        self._server = server
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        last: Any = b"0"
        with self._server.client() as client:
            while not self._stop.is_set():
                for _, entries in client.xread({self.keys.ingress(self.tenant): last}, block=50) or ():
                    for last, fields in entries:
                        self._answer(client, parse_entry(fields), last.decode())

    def _answer(self, client: Any, entry: Any, ingress_id: str) -> None:
        self.entries.append(entry)
        stream = entry.stream
        known, context = self._known.setdefault(stream, {}), self._context.setdefault(stream, [])
        if isinstance(entry, Open):
            self.opened[stream] = entry
            self._say(client, stream, Accepted("stand-in", 1))
        elif isinstance(entry, Append | Finish) and entry.text is not None:
            context.append(entry.text)
        elif isinstance(entry, Update):
            known.update({item.id: item.text for item in entry.context if item.text is not None})
            if any(item.id not in known for item in entry.context):
                self._say(client, stream, ErrorEvent("unknown_item", "no such item", "context", False, ingress_id))
            else:
                context[:] = [known[item.id] for item in entry.context]
        elif isinstance(entry, Cancel):
            self._say(client, stream, Done("cancelled"))
        if isinstance(entry, Finish):
            words = "|".join(context).replace("\n", " ⏎ ").split(" ")
            pieces = ['<"', *(f"{word} " for word in words), '\\n">\n']
            for index, piece in enumerate(pieces):
                self._say(client, stream, Token(index, piece, (index,)))
            usage = {"prompt_tokens": 3, "completion_tokens": len(pieces), "total_tokens": 3 + len(pieces)}
            self._say(client, stream, Done("stop", usage, {"ttft_ms": 7, "open_to_first_token_ms": None}))

    def _say(self, client: Any, stream: str, event: Event) -> None:
        client.xadd(self.keys.reply(self.tenant, stream), encode(event))


@pytest.fixture
def respond(server: Any) -> Iterator[Callable[..., Responder]]:
    """Start a responder for a pool and a tenant."""
    running: list[Responder] = []

    def start(pool: str = "default/default", tenant: str = "default") -> Responder:
        running.append(Responder(server, pool, tenant))
        return running[-1]

    yield start
    for responder in running:
        responder.stop()
