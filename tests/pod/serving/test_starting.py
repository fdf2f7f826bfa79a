"""Pods that do not get as far as taking streams: they end soon, say why, and their exit status tells."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from served_pod import COMMAND, kill
from waiting import wait_for

from stream2llm_bench.demo.ports import free_port
from stream2llm_pod.serving.command import PLUGIN_NAME

pytestmark = pytest.mark.e2e
# No weights to load: what is tested here is what goes on around the engine.
EXECUTOR = "stream2llm_pod.engine.simulation.executor.SimulatedExecutor"


@contextmanager
def starting(model: Path, redis_url: str, log_path: Path, **changes: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [*COMMAND, "serve", "--model", str(model), "--redis", redis_url, "--pod", "p", "--host", "127.0.0.1"]
    command += [
        "--port",
        str(free_port()),
        "--dtype",
        "float32",
        "--max-model-len",
        "512",
        "--enforce-eager",
        "--distributed-executor-backend",
        EXECUTOR,
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_USE_V2_MODEL_RUNNER": "0"}
    environment |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "INFO"}
    environment |= changes
    environment.pop("VLLM_CPU_KVCACHE_SPACE", None)
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        kill(process)


def test_a_pod_that_may_not_write_to_redis_ends_with_an_error(
    tiny_text_model: Path, valkey_server: Any, tmp_path: Path
) -> None:
    """Redis answers, so the start goes on; what only the first heartbeat finds out must not look like success."""
    client = valkey_server.client()
    client.acl_setuser("reader", enabled=True, passwords=["+pw"], keys=["*"], commands=["+ping", "+info", "+client"])
    url = f"redis://reader@127.0.0.1:{valkey_server.port}"
    log_path = tmp_path / "log"
    with starting(tiny_text_model, url, log_path, STREAM2LLM_REDIS_PASSWORD="pw") as process:
        wait_for("end", lambda: process.poll() is not None, 600)
        text = log_path.read_text(errors="replace")
        assert process.returncode == 1, text[-3000:]
    client.acl_deluser("reader")
    assert "stream2llm serve: streams cannot be served: " in text
    assert "no permissions" in text.lower() or "noperm" in text.lower()
    # Nobody said how large the KV cache shall be.
    assert "VLLM_CPU_KVCACHE_SPACE (in GiB) is not set: the KV cache gets" in text


def is_engine(process: psutil.Process) -> bool:
    """vLLM starts it by multiprocessing, and it gives itself a name later on."""
    try:
        return any("spawn_main" in word or "EngineCore" in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def test_sigterm_while_the_engine_loads_ends_the_pod(tiny_text_model: Path, valkey_server: Any, tmp_path: Path) -> None:
    """vLLM would wait for the engine, which listens to nobody before it is loaded."""
    log_path = tmp_path / "log"
    with starting(tiny_text_model, valkey_server.url, log_path) as process:
        parent = psutil.Process(process.pid)

        def engine() -> list[psutil.Process]:
            assert process.poll() is None, log_path.read_text(errors="replace")[-3000:]
            # Importing vLLM starts processes too, before anything of ours listens to signals.
            return [child for child in parent.children(recursive=True) if is_engine(child)]

        wait_for("an engine process", engine, 300)
        children = parent.children(recursive=True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
        _gone, alive = psutil.wait_procs(children, timeout=120)
        assert not alive, alive
    assert f"{PLUGIN_NAME} serve: SIGTERM while the engine was loading" in log_path.read_text(errors="replace")
