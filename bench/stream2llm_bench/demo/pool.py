"""A whole pool on this machine: Valkey, a serving pod and a router, as child processes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from stream2llm import Client
from stream2llm.connecting import connect
from stream2llm.errors import Stream2LLMError
from stream2llm.keys import DEFAULT_TENANT, PoolKeys
from stream2llm_bench.demo.children import Children
from stream2llm_bench.demo.ports import free_port
from stream2llm_bench.demo.valkey import start_valkey
from stream2llm_bench.failing import Unavailable
from stream2llm_bench.progress import Say

POD = "demo"
KV_CACHE_GIB = "1"
POD_READY_S = 900.0
ROUTER_READY_S = 60.0
LOCAL_ONLY = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "NO_COLOR": "1"}
"""The model lies on the disk: nothing needs to be looked up, or told to anyone."""


@contextmanager
def running_pool(model: Path, policy: str, work: Path, say: Say) -> Iterator[Client]:
    """Start everything, yield a client of it, and stop everything; logs are written to `work`.

    Raises Unavailable if a part cannot be started or dies.
    """
    with Children(work) as children:
        data = work / "valkey"
        data.mkdir()
        url = start_valkey(children, data)
        say(f"Valkey listens on {url}")
        children.start("pod", own_command("serve", *pod_arguments(model, policy, url)), pod_environment())
        children.start("router", own_command("route", "--redis", url, "--http", f"127.0.0.1:{free_port()}"))
        connection, keys = connect(url), PoolKeys()
        try:
            children.wait_until(lambda: router_ready(connection, keys), "the router", ROUTER_READY_S, say)
            children.wait_until(lambda: pod_ready(connection, keys), "the pod to load the model", POD_READY_S, say)
        finally:
            connection.close()
        with Client(url) as client:
            try:
                yield client
            except Stream2LLMError as error:
                children.check()
                raise Unavailable(f"{error}\n{children.tails()}") from error


def own_command(*arguments: str) -> list[str]:
    """The argument vector of a `stream2llm` sub-command under this very Python."""
    return [sys.executable, "-m", "stream2llm.commands.main", *arguments]


def pod_arguments(model: Path, policy: str, url: str) -> list[str]:
    """Arguments of `stream2llm serve` for the demo's model on a CPU."""
    return [
        *("--model", str(model), "--served-model-name", model.name, "--policy", policy, "--redis", url, "--pod", POD),
        *("--host", "127.0.0.1", "--port", str(free_port())),
        *("--dtype", "float32", "--block-size", "32", "--max-model-len", "4096", "--max-num-seqs", "8"),
        # Both ways of asking send the same prompt; the second must not find the first one's work.
        "--no-enable-prefix-caching",
        # Compiling takes longer than the whole demo and gains nothing for a model of this size.
        "--enforce-eager",
    ]


def pod_environment() -> dict[str, str]:
    """A small KV cache, unless the user's environment says otherwise."""
    return {"VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", KV_CACHE_GIB), **LOCAL_ONLY}


def router_ready(connection: redis.Redis, keys: PoolKeys) -> bool:
    """Whether a router holds the default tenant."""
    return bool(connection.exists(keys.lease(DEFAULT_TENANT)))


def pod_ready(connection: redis.Redis, keys: PoolKeys) -> bool:
    """Whether the demo's pod says that it takes streams."""
    raw: Any = connection.hget(keys.pods, POD)
    return raw is not None and json.loads(raw).get("state") == "ready"
