"""`stream2llm route` as a process, with its HTTP address."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from stream2llm_bench.demo.ports import free_port

COMMAND = [sys.executable, "-m", "stream2llm.commands.main"]
START_S = 60.0


@dataclass
class RunningRouter:
    url: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        return self.log.read_text()

    def access_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.said().splitlines() if line.startswith("{")]


@contextlib.contextmanager
def running_router(
    redis_url: str,
    pool: str,
    folder: Path,
    *arguments: str,
    scheme: str = "http",
    verify: Any = True,
    **environment: str,
) -> Iterator[RunningRouter]:
    """A router that answers /health, ended with the block."""
    port = free_port()
    log = folder / f"router-{port}.txt"
    command = [*COMMAND, "route", "--redis", redis_url, "--pool", pool, "--http", f"127.0.0.1:{port}", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **environment})
    router = RunningRouter(f"{scheme}://127.0.0.1:{port}", port, process, log)
    try:
        give_up_s = time.monotonic() + START_S
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{router.url}/health", verify=verify).status_code == 200:
                    break
            assert process.poll() is None, router.said()
            assert time.monotonic() < give_up_s, router.said()
            time.sleep(0.05)
        yield router
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
        process.kill()
        process.wait()


def make_token(redis_url: str, pool: str, tenant: str, **environment: str) -> str:
    """A new HTTP token, by the command."""
    command = [*COMMAND, "tenant", "token", tenant, "--redis", redis_url, "--pool", pool]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
