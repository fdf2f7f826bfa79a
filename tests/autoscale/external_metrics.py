"""The smallest server of external.metrics.k8s.io: what docs/autoscaling.md asks of an adapter, from Prometheus."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trustme

from stream2llm_bench.demo.ports import free_port

ROOT = "/apis/external.metrics.k8s.io/v1beta1"
PREFIX = "adapted_"
OURS = "stream2llm_"

Figure = Callable[[str, dict[str, str]], float | None]
"""(series, labels) → its value, None where there is none."""


class Adapter:
    """Start it as a context. figure: where values come from; `asked` counts the questions by series."""

    def __init__(self, folder: Path, figure: Figure) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.figure = figure
        self.asked: dict[str, int] = {}
        authority = trustme.CA()
        self.authority = authority.cert_pem.bytes()
        certificate = authority.issue_cert("localhost", "adapter.default.svc")
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), _handler(self))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._server.daemon_threads = True

    def __enter__(self) -> Adapter:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def values(self, metric: str, selector: str) -> list[dict[str, Any]]:
        """The items of an ExternalMetricValueList."""
        if not metric.startswith(PREFIX + OURS):
            return []
        series = OURS[:-1] + ":" + metric.removeprefix(PREFIX + OURS)
        labels = dict(part.split("=") for part in selector.split(","))
        self.asked[series] = self.asked.get(series, 0) + 1
        value = self.figure(series, labels)
        if value is None:
            return []
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return [{"metricName": metric, "metricLabels": labels, "timestamp": now, "value": f"{round(value * 1000)}m"}]


def _handler(adapter: Adapter) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            group = "external.metrics.k8s.io/v1beta1"
            if not parts.path.startswith(f"{ROOT}/namespaces/"):
                body: dict[str, Any] = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group}
                return self._answer({**body, "resources": []})
            selector = parse_qs(parts.query).get("labelSelector", [""])[0]
            items = adapter.values(parts.path.rpartition("/")[2], selector)
            body = {"kind": "ExternalMetricValueList", "apiVersion": group, "metadata": {}, "items": items}
            return self._answer(body)

        def _answer(self, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            # Whoever asked may have left.
            with suppress(OSError):
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            return

    return Handler
