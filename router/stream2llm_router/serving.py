"""The router's own small HTTP surface: health, status and metrics."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest


def make_server(
    address: tuple[str, int], registry: CollectorRegistry, status: Callable[[], dict[str, Any]]
) -> ThreadingHTTPServer:
    """A server for GET /health, /status.json and /metrics; OSError if the address cannot be bound."""

    class Handler(BaseHTTPRequestHandler):
        # A client that connects and says nothing must not keep a thread.
        timeout = 10

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            if path == "/health":
                healthy = bool(status()["redis_reachable"])
                self._answer(200 if healthy else 503, "text/plain", b"ok\n" if healthy else b"Redis is unreachable\n")
            elif path == "/status.json":
                self._answer(200, "application/json", json.dumps(status()).encode())
            elif path == "/metrics":
                self._answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))
            else:
                self._answer(404, "text/plain", b"not found\n")

        def _answer(self, code: int, content_type: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            return

    ThreadingHTTPServer.daemon_threads = True
    return ThreadingHTTPServer(address, Handler)
