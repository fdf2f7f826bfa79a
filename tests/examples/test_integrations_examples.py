"""The examples of integrations and the walk through two tenants, run as their pages say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_router import RunningRouter, make_token, running_router
from standin_pod import StandInPod

from stream2llm.entries import Append, Finish, Open, Update
from stream2llm.keys import PoolKeys

pytestmark = [pytest.mark.redis, pytest.mark.e2e]
EXAMPLES = Path(__file__).parents[2] / "examples"
KEYS = PoolKeys("tests/examples")


@pytest.fixture(scope="module")
def pod(redis_server: Any) -> Iterator[StandInPod]:
    with redis_server.client() as client:
        client.flushall()
        client.sadd(KEYS.tenants, "default")
    pod = StandInPod(redis_server.client, KEYS)
    yield pod
    pod.stop()


@pytest.fixture(scope="module")
def router(redis_server: Any, pod: StandInPod, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRouter]:
    with running_router(redis_server.url, KEYS.pool, tmp_path_factory.mktemp("examples")) as router:
        yield router


@pytest.fixture
def entries(pod: StandInPod) -> list[Any]:
    """What the pod gets during one test."""
    pod.entries.clear()
    return pod.entries


def start(redis_server: Any, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "REDIS_URL": redis_server.url, "POOL": KEYS.pool, **environment}
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_langchain(redis_server: Any, router: RunningRouter, entries: list[Any]) -> None:
    done = start(redis_server, [sys.executable, str(EXAMPLES / "python/langchain_retrievers.py"), "Why?"])
    fast, slow = "A KV block holds the keys and values of 16 tokens.", "Blocks are shared by prompts that begin alike."
    assert done.stdout == f"{fast} | {slow} | A block that is full is hashed. \n"
    assert f"3 documents, the first: {fast}" in done.stderr
    assert [type(entry) for _, entry in entries] == [Open, Append, Append, Append, Finish]


def test_llamaindex(redis_server: Any, router: RunningRouter, entries: list[Any]) -> None:
    done = start(redis_server, [sys.executable, str(EXAMPLES / "python/llamaindex_reranking.py"), "Why?"])
    assert done.stdout.endswith("A block that is full is hashed. | Blocks are shared by prompts that begin alike. \n")
    updates = [entry.context for _, entry in entries if isinstance(entry, Update)]
    assert [[item.id for item in context] for context in updates] == [["a", "b", "c"], ["a", "c", "b"]]
    assert [item.text for item in updates[1]] == [None, None, None]


def test_an_upstream_models_tokens(
    redis_server: Any, router: RunningRouter, pod: StandInPod, entries: list[Any]
) -> None:
    token = make_token(redis_server.url, KEYS.pool, "default")
    done = start(
        redis_server,
        [sys.executable, str(EXAMPLES / "python/upstream_model.py"), "Write.", "Sum up."],
        OPENAI_BASE_URL=f"{router.url}/v1",
        OPENAI_API_KEY=token,
    )
    asked = pod.requests[-1]["payload"]
    assert (asked["model"], asked["messages"]) == ("stand-in", [{"role": "user", "content": "Write."}])
    text = "".join(f"t{number} " for number in range(256))
    chunks = [entry.text for _, entry in entries if isinstance(entry, Append)]
    assert "".join(chunks) == text
    assert len(chunks) > 10
    (opened,) = [entry for _, entry in entries if isinstance(entry, Open)]
    assert opened.options.separator == ""
    assert text.strip() in done.stderr
    assert done.stdout.strip()


def test_two_tenants(redis_server: Any, router: RunningRouter, pod: StandInPod) -> None:
    for program in ("redis-cli", "curl"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    command = [str(EXAMPLES / "two-tenants/walk.sh")]
    stream2llm = str(Path(sys.executable).with_name("stream2llm"))
    done = start(redis_server, command, HTTP_URL=router.url, STREAM2LLM=stream2llm)
    told = done.stdout.splitlines()
    for line in (
        "acme reads: accepted",
        "acme reads: done",
        "globex may not read the reply",
        "globex may not replay the reply",
        "globex may not append",
        "globex may not finish",
        "globex may not see the entries",
        "globex reads: event: done",
        "acme reads its stream again: 200",
        "globex asks for it: 410",
        "globex appends to it: 404",
    ):
        assert line in told, done.stdout + done.stderr
    assert "s2l_" not in done.stdout + done.stderr
    forged = [tenant for tenant, entry in pod.entries if getattr(entry, "text", None) == "Forged."]
    assert forged == []
    with redis_server.client() as client:
        assert client.smembers(KEYS.tenants) == {b"default"}
        assert client.acl_users() == ["default"]


def test_the_walk_changes_no_tenant_that_is_there(redis_server: Any) -> None:
    """It gave the Redis users of tenants with these names new passwords, which nobody knew afterwards."""
    if shutil.which("redis-cli") is None:
        pytest.skip("redis-cli is not installed")
    environment = {**os.environ, "REDIS_URL": redis_server.url, "POOL": "tests/there"}
    environment["STREAM2LLM"] = str(Path(sys.executable).with_name("stream2llm"))
    with redis_server.client() as client:
        tenants = PoolKeys("tests/there").tenants
        client.sadd(tenants, "globex")
        done = subprocess.run(
            [str(EXAMPLES / "two-tenants/walk.sh")], env=environment, capture_output=True, text=True, timeout=300
        )
        assert (done.returncode, client.smembers(tenants)) == (1, {b"globex"})
        assert client.acl_users() == ["default"]
    assert "globex is there already" in done.stderr
