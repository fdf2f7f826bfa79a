"""The processes of a chaos run: Redis, routers, and pods on the simulated executor; and what is done to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis
from forking import Launcher

from stream2llm_bench.demo.ports import free_port
from stream2llm_bench.simulated_core import EXECUTOR

READY_S = 300.0
SIMULATION = {"paced": True, "step_ms": 20.0}
"""Settings of the simulated executor."""


class Process:
    """A pod or a router that can be stopped, killed and started again under the same name and port."""

    def __init__(self, launcher: Launcher, name: str, arguments: list[str], path: str, folder: Path) -> None:
        self._launcher, self._arguments, self._path = launcher, arguments, path
        self.name, self.log = name, folder / f"{name}.log"
        self.port = free_port()
        self.pid = 0
        self.start()

    def start(self) -> None:
        arguments = [argument.format(port=self.port) for argument in self._arguments]
        self.pid = self._launcher.start(arguments, self.log)

    def kill(self) -> None:
        """End it with all that it has started, and return when its port is free."""
        with suppress(ProcessLookupError):
            while True:
                os.killpg(self.pid, signal.SIGKILL)
                time.sleep(0.05)

    def gone(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def drain(self) -> None:
        """Tell it to leave, and return when it has."""
        os.kill(self.pid, signal.SIGTERM)
        give_up_s = time.monotonic() + READY_S
        while not self.gone():
            if time.monotonic() > give_up_s:
                raise TimeoutError(f"{self.name} does not leave:\n{self.log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{self._path}", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def wait_ready(self) -> None:
        give_up_s = time.monotonic() + READY_S
        while not self.ready():
            if time.monotonic() > give_up_s:
                raise TimeoutError(f"{self.name} is not ready:\n{self.log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)

    def complete(self, prompt: str, max_tokens: int) -> str:
        """What this pod answers to the whole prompt in one ordinary request."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            choice: dict[str, Any] = json.load(answer)["choices"][0]
        return str(choice["text"])


class Redis:
    """A server with an append-only file."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.port = free_port()
        self._command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        self._command += ["--appendonly", "yes", "--maxmemory-policy", "noeviction"]
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, protocol=2, socket_timeout=15)

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        while True:
            with suppress(redis.RedisError), self.client() as client:
                client.ping()
                return
            time.sleep(0.05)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        self.kill()
        time.sleep(0.5)
        self.start()


class Pool:
    """All of them."""

    def __init__(
        self,
        binary: str,
        model: Path,
        folder: Path,
        *,
        pods: int,
        routers: int,
        simulation: dict[str, Any] | None = SIMULATION,
        engine_arguments: tuple[str, ...] = (),
    ) -> None:
        self.redis = Redis(binary, folder)
        self.launcher = Launcher()
        serve = ["serve", "--model", str(model), "--redis", self.redis.url, "--host", "127.0.0.1", "--port", "{port}"]
        serve += ["--served-model-name", "tiny", "--dtype", "float32", "--max-model-len", "2048", "--enforce-eager"]
        serve += ["--max-num-seqs", "128", "--retain-seconds", "30", "--drain-seconds", "6"]
        serve += engine_arguments
        if simulation is not None:
            escaped = json.dumps({"simulation": simulation}).replace("{", "{{").replace("}", "}}")
            serve += ["--distributed-executor-backend", EXECUTOR, "--additional-config", escaped]
        route = ["route", "--redis", self.redis.url, "--http", "127.0.0.1:{port}", "--retain-seconds", "30"]
        route += ["--open-wait-seconds", "120"]
        self.routers = [Process(self.launcher, f"r{i}", route, "/health", folder) for i in range(routers)]
        self.pods = [Process(self.launcher, f"p{i}", [*serve, "--pod", f"p{i}"], "/ready", folder) for i in range(pods)]

    def wait_ready(self) -> None:
        for process in (*self.routers, *self.pods):
            process.wait_ready()

    def close(self) -> None:
        for process in (*self.routers, *self.pods):
            process.signal(signal.SIGCONT)
            process.kill()
        self.launcher.close()
        self.redis.kill()
