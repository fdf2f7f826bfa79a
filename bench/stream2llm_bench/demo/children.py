"""Child processes of the demo: started in groups of their own, watched, and always stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from stream2llm_bench.failing import Unavailable
from stream2llm_bench.progress import Say

STOP_GRACE_S = 20.0
TAIL_LINES = 25
REPORT_EVERY_S = 15.0


class Child:
    """One process and the group it leads. Its output goes to a log file."""

    def __init__(self, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.name, self.log = name, log
        with log.open("wb") as output:
            # A session of its own: Ctrl-C reaches the demo alone, which then stops its children in order.
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.poll()

    def tail(self) -> str:
        """The last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join(f"  | {line}" for line in lines)

    def terminate(self) -> None:
        """Ask it to stop."""
        if self.exit_status is None:
            self._process.terminate()

    def kill(self) -> None:
        """End what is left of its group, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self, grace_s: float) -> None:
        """Wait for it, then kill whatever is left of its group."""
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        finally:
            self.kill()


class Children:
    """The processes of one demo, as a context manager that stops them, the last started first."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: list[Child] = []

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Child:
        """Start a process. Raises Unavailable if its program cannot be run."""
        try:
            child = Child(name, argv, self._logs / f"{name}.log", env or {})
        except OSError as error:
            raise Unavailable(f"{name} cannot be started: {error}") from error
        self._children.append(child)
        return child

    def forget(self, child: Child) -> None:
        """Leave out a child that has ended, so that `check` no longer complains about it."""
        self._children.remove(child)

    def check(self) -> None:
        """Raise Unavailable, with the end of its log, if a child has died."""
        for child in self._children:
            if child.exit_status is not None:
                raise Unavailable(
                    f"{child.name} stopped with status {child.exit_status}; the end of {child.log}:\n{child.tail()}"
                )

    def tails(self) -> str:
        """The ends of all logs."""
        return "\n".join(f"{child.log}:\n{child.tail()}" for child in self._children)

    def wait_until(self, ready: Callable[[], bool], what: str, timeout_s: float, say: Say) -> None:
        """Wait until `ready`, saying so every few seconds.

        Raises Unavailable after `timeout_s`, or when a child dies.
        """
        started = reported = time.monotonic()
        say(f"waiting for {what}")
        while not ready():
            self.check()
            now = time.monotonic()
            if now - started > timeout_s:
                raise Unavailable(f"{what}: not ready after {timeout_s:.0f} s\n{self.tails()}")
            if now - reported >= REPORT_EVERY_S:
                reported = now
                say(f"  still waiting for {what} ({now - started:.0f} s)")
            time.sleep(0.1)

    def __enter__(self) -> Children:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            for child in reversed(self._children):
                child.terminate()
                child.stop(STOP_GRACE_S)
        finally:
            # A second Ctrl-C ends up here: nothing is left behind even then.
            for child in self._children:
                child.kill()
