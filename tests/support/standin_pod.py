"""A pod without an engine: real heartbeats, log and replies, and an answer that repeats the context.

The reply goes through the pod's own script, so routes end and entries vanish as they do with a real pod.
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stream2llm.entries import Append, Cancel, Finish, Open, Update, parse_entry
from stream2llm.events import Accepted, Done, ErrorEvent, Event, Token, encode, is_terminal
from stream2llm.keys import PoolKeys
from stream2llm_pod.serving import scripts

LIVE_MS = 3_600_000


class StandInPod:
    """Serves one pool until `stop`. `client` makes a Redis client of its own for each thread.

    token_delay_s: wait before each token. `entries` is every entry that came, with its tenant.
    """

    def __init__(
        self, client: Any, keys: PoolKeys, name: str = "pod-0", *, token_delay_s: float = 0.0, retain_ms: int = 60_000
    ) -> None:
        self.keys, self.name, self.incarnation = keys, name, f"{name}-1"
        self.token_delay_s, self.retain_ms = token_delay_s, retain_ms
        self.entries: list[tuple[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        """What came to the OpenAI endpoints: path, headers, payload."""
        self.gate = threading.Event()
        """While it is clear, no token of a stream's answer is written."""
        self.gate.set()
        self.aborted = threading.Event()
        """Set when somebody left in the middle of an answer of the OpenAI endpoints."""
        self._known: dict[tuple[str, str], dict[str, str]] = {}
        self._context: dict[tuple[str, str], list[str]] = {}
        self._ended: set[tuple[str, str]] = set()
        self._chunks: set[tuple[str, str, str]] = set()
        self._stop = threading.Event()
        self._make = client
        self._http = _server(self)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._threads = [
            threading.Thread(target=self._http.serve_forever, daemon=True),
            threading.Thread(target=self._run, daemon=True),
            threading.Thread(target=self._beat_on, daemon=True),
        ]
        with client() as connection:
            self._beat(connection)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._http.shutdown()
        self._http.server_close()
        for thread in self._threads[1:]:
            thread.join()
        with self._make() as connection:
            connection.hdel(self.keys.pods, self.name)

    def _beat(self, client: Any) -> None:
        seconds, _ = client.time()
        beat = {
            "incarnation": self.incarnation,
            "protocol": 1,
            "fingerprint": "f",
            "state": "ready",
            "models": ["stand-in"],
            "url": self.url,
            "max_model_len": 100_000,
            "capacity": {"max_open_streams": 1_000_000, "kv_tokens": 1_000_000},
            "load": {"open_streams": 0, "backlog_tokens": 0, "kv_usage": 0.0},
            "prefill_tokens_per_s": None,
            "time_ms": seconds * 1000,
        }
        client.hset(self.keys.pods, self.name, json.dumps(beat))

    def _beat_on(self) -> None:
        """In a thread of its own: a pod that answers slowly is not gone."""
        with self._make() as client:
            while not self._stop.wait(0.5):
                self._beat(client)

    def _run(self) -> None:
        log, after = self.keys.log(self.name, self.incarnation), "0"
        with self._make() as client:
            reply = client.register_script(scripts.load("reply").source)
            while not self._stop.is_set():
                for _, entries in client.xread({log: after}, block=50) or ():
                    for identifier, fields in entries:
                        after = identifier
                        if fields.get(b"op") == b"adopt":
                            self._adopt(client, reply, fields)
                        else:
                            self._apply(client, reply, fields, fields[b"tenant"].decode(), int(fields[b"attempt"]))

    def _adopt(self, client: Any, reply: Any, adopt: dict[bytes, bytes]) -> None:
        tenant, stream, attempt = adopt[b"tenant"].decode(), adopt[b"stream"].decode(), int(adopt[b"attempt"])
        self._say(client, reply, tenant, stream, attempt, Accepted(self.name, attempt))
        for _, fields in client.xrange(self.keys.entries(tenant, stream)):
            if int(fields[b"seq"]) <= int(adopt[b"upto"]):
                self._apply(client, reply, fields, tenant, attempt)

    def _apply(self, client: Any, reply: Any, fields: dict[bytes, bytes], tenant: str, attempt: int) -> None:
        entry = parse_entry(fields)
        self.entries.append((tenant, entry))
        place = (tenant, entry.stream)
        known, context = self._known.setdefault(place, {}), self._context.setdefault(place, [])

        def say(event: Event) -> None:
            self._say(client, reply, tenant, entry.stream, attempt, event)

        if isinstance(entry, Open):
            context.clear()
            self._ended.discard(place)
        elif isinstance(entry, Append | Finish) and (entry.text is not None or entry.tokens is not None):
            repeated = (*place, entry.chunk or "")
            if not entry.chunk or repeated not in self._chunks:
                context.append(entry.text if entry.text is not None else f"{entry.tokens}")
            self._chunks.add(repeated)
        elif isinstance(entry, Update):
            known.update({item.id: item.text for item in entry.context if item.text is not None})
            if any(item.id not in known for item in entry.context):
                ingress_id = fields[b"ingress_id"].decode()
                say(ErrorEvent("unknown_item", "no such item", "context", False, ingress_id))
            else:
                context[:] = [known[item.id] for item in entry.context]
        elif isinstance(entry, Cancel):
            say(Done("cancelled", {}, {}))
        if isinstance(entry, Finish):
            for index, word in enumerate(" | ".join(context).split(" ")):
                time.sleep(self.token_delay_s)
                self.gate.wait(120)
                say(Token(index, f"{word} ", (index,)))
            say(Done("stop", {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}, {"ttft_ms": 7}))

    def _say(self, client: Any, reply: Any, tenant: str, stream: str, attempt: int, event: Event) -> None:
        place = (tenant, stream)
        if place in self._ended:
            return
        fields = encode(event)
        first, tokens = (event.index, len(event.token_ids)) if isinstance(event, Token) else (-1, 0)
        assigned = self.keys.assigned(self.name, self.incarnation)
        keys = [self.keys.route(*place), self.keys.reply(*place), self.keys.entries(*place)]
        keys += [self.keys.usage(tenant), assigned]
        open_id = client.hget(self.keys.route(*place), "open_id") or ""
        arguments = [attempt, self.incarnation, open_id, self.retain_ms, LIVE_MS, 100_000, f"{tenant}:{stream}", 1]
        arguments += [fields["event"], fields["data"], int(is_terminal(event)), first, tokens]
        reply(keys=keys, args=arguments)
        if is_terminal(event):
            self._ended.add(place)


def _server(pod: StandInPod) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._remember(None)
            self._answer({"object": "list", "data": [{"id": "stand-in", "object": "model"}]})

        def do_POST(self) -> None:
            payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._remember(payload)
            if payload.get("model") == "unknown":
                return self._answer({"error": {"message": "no such model", "code": 404}}, 404)
            if not payload.get("stream"):
                return self._answer({"object": "chat.completion", "choices": [], "path": self.path})
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for number in range(int(payload.get("max_tokens") or 3)):
                    self._piece(f'data: {{"choices":[{{"delta":{{"content":"t{number} "}}}}]}}\n\n')
                    time.sleep(pod.token_delay_s)
                self._piece("data: [DONE]\n\n")
                self._piece("")
            except OSError:
                pod.aborted.set()

        def _piece(self, text: str) -> None:
            data = text.encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

        def _remember(self, payload: Any) -> None:
            pod.requests.append({"path": self.path, "headers": dict(self.headers), "payload": payload})

        def _answer(self, body: Any, status: int = 200) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            return

    ThreadingHTTPServer.daemon_threads = True
    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)
