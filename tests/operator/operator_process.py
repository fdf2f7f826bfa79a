"""The operator as a process of its own, as its container starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from stream2llm_bench.demo.ports import free_port


class RunningOperator:
    """`stream2llm operator` on a kubeconfig. Start it as a context; `kill` and `start` in between are allowed.

    prefix: a command that becomes another one, such as in a namespace.
    """

    def __init__(self, kubeconfig: Path, log: Path, *arguments: str, prefix: Sequence[str] = ()) -> None:
        self.kubeconfig, self.log, self.arguments, self._prefix = kubeconfig, log, arguments, prefix
        self.health, self.metrics = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RunningOperator:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    def start(self) -> None:
        command = [*self._prefix, sys.executable, "-m", "stream2llm.commands.main", "operator"]
        command += ["--health", f"127.0.0.1:{self.health}", "--metrics", f"127.0.0.1:{self.metrics}", *self.arguments]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, "KUBECONFIG": str(self.kubeconfig)}
            )

    def kill(self) -> None:
        """As the kernel does when memory is short."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health}/healthz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def metric(self, name: str) -> float:
        """A metric without labels; 0 before the operator answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return 0.0
        return next((float(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0.0)
