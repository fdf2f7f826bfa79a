"""The HTTP server in a thread of its own: forwarding keeps the main one's rhythm."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI

from stream2llm_router.gateway.gateway import Gateway

logger = logging.getLogger(__name__)

CLOSE_S = 5
"""How long answers that are under way may take once the router stops."""
BACKLOG = 1_024


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files of the server's own certificate."""

    cert_file: str
    key_file: str


class Server:
    """Serves an application until `stop`."""

    def __init__(
        self, app: FastAPI, gateway: Gateway, address: tuple[str, int], certificate: Certificate | None = None
    ) -> None:
        """Raises OSError if the address cannot be bound, or a file of the certificate not be read."""
        self._gateway, self._stopping = gateway, False
        self._socket = _bound(address)
        self.port = int(self._socket.getsockname()[1])
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=CLOSE_S,
            ssl_certfile=certificate.cert_file if certificate else None,
            ssl_keyfile=certificate.key_file if certificate else None,
        )
        try:
            # Reads the certificate, which must fail here and not in the thread.
            config.load()
        except Exception:
            self._socket.close()
            raise
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def close(self) -> None:
        """Give the address back; for a server that was never started."""
        self._socket.close()

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        # Broken connections and readers that left are everyday; what matters is in our own log.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self._server.run(sockets=[self._socket])
        if not self._stopping:
            logger.critical("the HTTP server has ended by itself")

    def stop(self) -> None:
        """Let readers go and wait for the other answers."""
        self._gateway.let_readers_go()
        self._stopping = True
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(CLOSE_S + 2)


def _bound(address: tuple[str, int]) -> socket.socket:
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound


def show_access_log() -> None:
    """Requests are logged to standard error, each as one JSON object a line and nothing else."""
    # It would tell every request to a pod once more.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    access = logging.getLogger("stream2llm_router.access")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    access.handlers, access.propagate = [handler], False
    access.setLevel(logging.INFO)
