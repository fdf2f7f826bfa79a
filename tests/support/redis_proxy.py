"""A proxy in front of a Redis server that sees each command, and may end the talk before or after any of them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

Command = list[bytes]
PASS, BEFORE, AFTER, SILENT = "pass", "before", "after", "silent"
"""What becomes of a command: it goes through; nothing happens from before it on; or it is carried out and its answer
never comes, because everything ends (`after`), or because nobody says anything any more (`silent`)."""


class RedisProxy:
    """Listens on a port of its own. `decide` is asked about one command at a time, of whatever connection it is.

    ended: called once when a command was `before` or `after`, at that moment; nothing passes any more then.
    """

    def __init__(
        self, server_port: int, decide: Callable[[Command], str], ended: Callable[[], object] = lambda: None
    ) -> None:
        self._server_port, self._decide, self._ended = server_port, decide, ended
        self._lock = threading.RLock()
        self._over = False
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def close(self) -> None:
        with self._lock:
            self._over = True
            for each in (self._listener, *self._sockets):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                return
            with self._lock:
                self._sockets += [client, server]
            threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError, EOFError, ValueError), client.makefile("rb") as asked, server.makefile("rb") as answered:
            while self._pass_on(client, server, asked, answered):
                pass
        for each in (client, server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _pass_on(self, client: socket.socket, server: socket.socket, asked: BinaryIO, answered: BinaryIO) -> bool:
        """One command and its answer; False when it was the last."""
        raw, command = _request(asked)
        with self._lock:
            if self._over:
                return False
            verdict = self._decide(command)
            if verdict in (AFTER, SILENT):
                server.sendall(raw)
                _answer(answered)
            if verdict in (BEFORE, AFTER):
                self._over = True
                self._ended()
            if verdict != PASS:
                return verdict == SILENT
        # Reads that block must not keep the other connections waiting.
        server.sendall(raw)
        answer = _answer(answered)
        with self._lock:
            if not self._over:
                client.sendall(answer)
            return not self._over


def _line(source: BinaryIO) -> bytes:
    line = source.readline()
    if not line.endswith(b"\r\n"):
        raise EOFError
    return line


def _exactly(source: BinaryIO, count: int) -> bytes:
    data = source.read(count)
    if len(data) < count:
        raise EOFError
    return data


def _request(source: BinaryIO) -> tuple[bytes, Command]:
    """One command as it came, and its words."""
    head = _line(source)
    raw, words = [head], []
    for _ in range(int(head[1:])):
        size = _line(source)
        word = _exactly(source, int(size[1:]) + 2)
        raw += [size, word]
        words.append(word[:-2])
    return b"".join(raw), words


def _answer(source: BinaryIO) -> bytes:
    """One RESP2 answer as it came."""
    head = _line(source)
    kind, count = head[:1], head[1:-2]
    if kind == b"$" and int(count) >= 0:
        return head + _exactly(source, int(count) + 2)
    if kind == b"*" and int(count) > 0:
        return head + b"".join(_answer(source) for _ in range(int(count)))
    return head


def name_of(command: Command) -> str:
    """`XREAD`, `EVALSHA`, …"""
    return command[0].decode("ascii", "replace").upper()


def counting(at: int, verdict: str, seen: list[Any]) -> Callable[[Command], str]:
    """Decides `verdict` for the command number `at` (from 1), and notes each command's name in `seen`."""

    def decide(command: Command) -> str:
        seen.append(name_of(command))
        return verdict if len(seen) == at else PASS

    return decide
