"""A real pod on a tiny model, and entries written straight into its log as a router would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis
from waiting import wait_for

from stream2llm.keys import PoolKeys
from stream2llm_bench.demo.ports import free_port

MESSAGES = [
    {"role": "system", "content": "Answer from the documents."},
    {"role": "user", "content": "Documents:\n{context}\n\nQuestion: what does it say?"},
]
COMMAND = [sys.executable, "-c", "from stream2llm.commands.main import main; raise SystemExit(main())"]


@dataclass
class StandInRouter:
    """Writes what the router's scripts write: route, entries and pod log."""

    client: redis.Redis
    keys: PoolKeys
    pod: str
    incarnation: str
    tenant: str = "default"
    seqs: dict[str, int] = field(default_factory=dict)
    open_ids: dict[str, str] = field(default_factory=dict)

    def open(self, stream: str, *, attempt: int = 1, **fields: Any) -> None:
        fields = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
        entry = self._entry({"stream": stream, "op": "open", **fields}, 1)
        route = self.keys.route(self.tenant, stream)
        self.open_ids[stream] = entry["ingress_id"]
        self.client.hset(
            route,
            mapping={
                "state": "open",
                "pod": self.pod,
                "incarnation": self.incarnation,
                "attempt": attempt,
                "seq": 1,
                "open_id": entry["ingress_id"],
            },
        )
        self.client.hset(self.keys.assigned(self.pod, self.incarnation), f"{self.tenant}:{stream}", 0)
        self.client.xadd(self.keys.entries(self.tenant, stream), entry)
        self.seqs[stream] = 1
        self.adopt(stream, attempt)

    def adopt(self, stream: str, attempt: int) -> None:
        upto = self.seqs[stream]
        self.client.hset(
            self.keys.route(self.tenant, stream), mapping={"attempt": attempt, "incarnation": self.incarnation}
        )
        self.client.xadd(
            self.log, {"op": "adopt", "tenant": self.tenant, "stream": stream, "attempt": attempt, "upto": upto}
        )

    @contextmanager
    def together(self) -> Iterator[None]:
        """The pod reads what is sent in here at once: its answer cannot end in between, however slow the machine."""
        client = self.client
        self.client = client.pipeline(transaction=True)
        try:
            yield
            self.client.execute()
        finally:
            self.client = client

    def send(self, stream: str, op: str, *, attempt: int = 1, log: bool = True, **fields: Any) -> None:
        fields = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
        seq = self.seqs[stream] = self.seqs[stream] + 1
        entry = self._entry({"stream": stream, "op": op, **fields}, seq)
        self.client.xadd(self.keys.entries(self.tenant, stream), entry)
        if log:
            self.client.xadd(self.log, {**entry, "tenant": self.tenant, "attempt": attempt})
        if stream in self.open_ids:
            self.client.hset(self.keys.route(self.tenant, stream), "seq", seq)

    @property
    def log(self) -> str:
        return self.keys.log(self.pod, self.incarnation)

    def _entry(self, fields: dict[str, str], seq: int) -> dict[str, Any]:
        return {**fields, "seq": seq, "ingress_id": f"{time.time_ns() // 1_000_000}-0"}

    def events(self, stream: str) -> list[tuple[str, dict[str, Any]]]:
        reply = self.client.xrange(self.keys.reply(self.tenant, stream))
        return [(fields[b"event"].decode(), json.loads(fields[b"data"])) for _, fields in reply]

    def ended(self, stream: str, timeout_s: float = 60.0) -> list[tuple[str, dict[str, Any]]]:
        """All events, once there is a terminal one."""

        def terminal() -> list[tuple[str, dict[str, Any]]] | None:
            events = self.events(stream)
            over = [data for event, data in events if event == "done" or (event == "error" and data["terminal"])]
            return events if over else None

        events: list[tuple[str, dict[str, Any]]] = wait_for(f"end of {stream}", terminal, timeout_s)
        return events


def answer_ids(events: list[tuple[str, dict[str, Any]]]) -> list[int]:
    """The answer's token ids; each index must come once and in order."""
    ids: list[int] = []
    for event, data in events:
        if event == "token":
            assert data["index"] == len(ids)
            ids += data["token_ids"]
    return ids


def answer_text(events: list[tuple[str, dict[str, Any]]]) -> str:
    return "".join(data["text"] for event, data in events if event == "token")


@dataclass
class Pod:
    """A `stream2llm serve` process."""

    process: subprocess.Popen[bytes]
    url: str
    name: str
    log_path: Path
    redis_port: int

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                value: dict[str, Any] = json.load(answer)
                return value
        except urllib.error.HTTPError as error:
            pytest.fail(f"{path}: {error.code} {error.read().decode()}")

    def router(self, tenant: str = "default") -> StandInRouter:
        client = redis.Redis(port=self.redis_port, protocol=2)
        keys = PoolKeys()
        beat = json.loads(client.hget(keys.pods, self.name) or b"{}")
        return StandInRouter(client, keys, self.name, beat["incarnation"], tenant)

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace")


def start_pod(model: Path, redis_port: int, folder: Path, *arguments: str, name: str = "pod-a") -> Pod:
    """Start a pod and return once it takes streams."""
    port = free_port()
    command = [*COMMAND, "serve", "--model", str(model), "--redis", f"redis://127.0.0.1:{redis_port}", "--pod", name]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny", "--dtype", "float32"]
    command += ["--max-model-len", "2048", "--max-num-seqs", "64", "--enforce-eager", *arguments]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    environment |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_USE_V2_MODEL_RUNNER": "0"}
    log_path = folder / f"{name}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    pod = Pod(process, f"http://127.0.0.1:{port}", name, log_path, redis_port)

    def ready() -> bool:
        if process.poll() is not None:
            pytest.fail(f"the pod ended with {process.returncode}:\n{pod.log_text()[-4000:]}")
        try:
            return pod.get("/ready")[0] == 200
        except OSError:
            return False

    try:
        wait_for("pod ready", ready, 600)
    except BaseException:
        kill(process)
        raise
    return pod


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a pod and the engine it started, hard."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
