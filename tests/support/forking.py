"""Starts processes of ours by forking one that has imported everything: a pod is there in seconds, not in a minute.

Run as a program it reads one JSON line for each process to start, `{"arguments": […], "log": PATH,
"environment": {…}}`, and answers with its pid; at the end of its input it ends. What it starts are processes like any
others, each the head of its own group.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
"""Of all of them: small pods of vLLM on a processor, many beside one another, that ask nobody."""
CLOCK_AHEAD = "TEST_CLOCK_AHEAD_S"
"""A variable for one process, whose clock is ahead of this machine's by so many seconds."""


class Launcher:
    """The other side: starts that program, and processes through it."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **ENVIRONMENT}, text=True
        )
        self._answer()

    def start(self, arguments: list[str], log: Path, environment: Mapping[str, str] | None = None) -> int:
        """`stream2llm ARGUMENTS…` in a process of its own, with these variables besides ours; its pid."""
        assert self._process.stdin is not None
        self._process.stdin.write(
            json.dumps({"arguments": arguments, "log": str(log), "environment": dict(environment or {})}) + "\n"
        )
        self._process.stdin.flush()
        return int(self._answer()["pid"])

    def close(self) -> None:
        """It has nothing to tidy up, and its libraries take their time to leave."""
        self._process.kill()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def _set_clock(ahead_s: float) -> None:
    """What time it is changes for this process; how time goes by does not."""
    if ahead_s:
        real = time.time
        time.time = lambda: real() + ahead_s


def run() -> None:
    """The program."""
    import multiprocessing
    import signal

    import vllm.entrypoints.launchers.api_server.entry
    import vllm.v1.engine.utils

    from stream2llm.commands.main import main

    # On CPU vLLM would start the engine core from scratch, which imports everything again.
    vllm.v1.engine.utils.get_mp_context = lambda: multiprocessing.get_context("fork")
    # Nobody waits for what is started here; who wants to know looks whether it is there.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ |= order["environment"]
            _set_clock(float(os.environ.pop(CLOCK_AHEAD, 0)))
            sys.argv = ["stream2llm", *order["arguments"]]
            code = 1
            try:
                code = main()
            finally:
                sys.stdout.flush()
                os._exit(code)
        print(json.dumps({"pid": pid}), flush=True)


if __name__ == "__main__":
    run()
