"""The programs of a cluster as processes: each with a log of its own, stopped in the order they are told."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Components:
    """Starts, stops and watches them. prefix: a command that runs another one, such as inside a network namespace."""

    def __init__(self, logs: Path, prefix: Sequence[str] = ()) -> None:
        self.logs, self._prefix = logs, tuple(prefix)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def running(self) -> list[str]:
        """Names, in the order of their start."""
        return list(self._processes)

    def start(self, name: str, command: Sequence[str], *, path: str = "") -> None:
        """path: what its PATH begins with, for programs that call others."""
        search = os.pathsep.join(part for part in (path, "/usr/sbin:/usr/bin:/sbin:/bin") if part)
        with (self.logs / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*self._prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.logs,
                env={**os.environ, "HOME": str(self.logs), "PATH": search},
                # Ctrl-C is for whoever started them, who stops them in order.
                process_group=0,
                preexec_fn=_end_with_parent,
            )

    def stop(self, name: str, *, hard: bool = False) -> None:
        """Returns once it has ended. One that is not there is no error."""
        process = self._processes.pop(name, None)
        if process is None:
            return
        process.kill() if hard else process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def signal(self, name: str, number: int) -> None:
        """Such as SIGHUP to read its configuration again, or SIGSTOP."""
        self._processes[name].send_signal(number)

    def stop_all(self) -> None:
        """The last one started first."""
        for name in reversed(self.running):
            self.stop(name)

    def wait(self, what: str, ready: Callable[[], bool], timeout_s: float = 120.0) -> None:
        """Returns once `ready()` is true; an OSError or RuntimeError of it counts as not yet.

        Raises RuntimeError with the end of its log if a component has ended, TimeoutError after the limit.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(OSError, RuntimeError):
                if ready():
                    return
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} has ended with {process.returncode}: {self.log_end(name)}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} is not ready after {timeout_s:g} s; logs are in {self.logs}")
            time.sleep(0.1)

    def log_end(self, name: str) -> str:
        return (self.logs / f"{name}.log").read_text(errors="replace")[-3000:]


def _end_with_parent() -> None:
    """Whoever is killed can stop nothing any more, and these must not stay for ever."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
