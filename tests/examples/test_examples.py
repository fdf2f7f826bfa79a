"""The examples run as they are, against a real Redis; the pool's answer is written by hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stream2llm import Done, Token
from stream2llm.access import tenant_rules
from stream2llm.entries import Entry, Finish, Open, parse_entry
from stream2llm.events import ErrorEvent, Event, encode
from stream2llm.keys import PoolKeys

pytestmark = pytest.mark.redis
ROOT = Path(__file__).parents[2]
KEYS = PoolKeys()
ANSWER = (Token(0, "Because ", (1,)), Token(1, "\u00fc.", (2,)), Done("stop", {"prompt_tokens": 9}, {"ttft_ms": 5}))


@contextmanager
def pool(
    server: Any, keys: PoolKeys = KEYS, tenant: str = "default", answer: tuple[Event, ...] = ANSWER
) -> Iterator[list[Entry]]:
    """Reads ingress as a router would, and answers each stream when it is finished."""
    seen: list[Entry] = []
    stop = threading.Event()

    def serve() -> None:
        last = "0"
        with server.client() as client:
            while not stop.is_set():
                for _, entries in client.xread({keys.ingress(tenant): last}, block=50) or ():
                    for entry_id, fields in entries:
                        last = entry_id
                        entry = parse_entry(fields)
                        seen.append(entry)
                        if isinstance(entry, Finish):
                            for event in answer:
                                client.xadd(keys.reply(tenant, entry.stream), encode(event))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def run(server: Any, command: list[str], **environment: str) -> str:
    env = {
        **os.environ,
        "REDIS_URL": server.url,
        **environment,
    }
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def kinds(seen: list[Entry]) -> list[str]:
    return [type(entry).__name__ for entry in seen]


def test_redis_cli(server: Any, tmp_path: Path) -> None:
    if shutil.which("redis-cli") is None:
        pytest.skip("redis-cli is not installed (Debian package redis-tools)")
    page = tmp_path / "page.txt"
    page.write_text('He said "no" \\ and left.\n')
    with pool(server) as seen:
        output = run(server, [str(ROOT / "examples/redis-cli/ask.sh"), 'Why "no"?', str(page)], TMPDIR=str(tmp_path))
    assert kinds(seen) == ["Open", "Append", "Finish"]
    opened = seen[0]
    assert isinstance(opened, Open)
    assert opened.prompt == 'Answer from the context.\n\n{context}\n\nQuestion: Why "no"?\nAnswer:'
    assert seen[1].text == page.read_text()  # type: ignore[union-attr]
    assert "Because" in output


def test_node(server: Any, tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    page = tmp_path / "page.txt"
    page.write_text("Gr\u00fc\u00dfe " * 30_000)
    with pool(server) as seen:
        output = run(server, ["node", str(ROOT / "examples/node/ask.mjs"), "Why?", str(page)])
    assert kinds(seen) == ["Open", "Append", "Finish"]
    assert seen[1].text == page.read_text()  # type: ignore[union-attr]
    assert output == "Because \u00fc.\n(9 prompt tokens, ttft 5 ms)\n"


@pytest.mark.parametrize(
    ("example", "expected"),
    [("append", ["Open", "Append", "Append", "Append", "Finish"]), ("update", ["Open"] + ["Update"] * 3 + ["Finish"])],
)
def test_python(server: Any, example: str, expected: list[str]) -> None:
    with pool(server) as seen:
        output = run(server, [sys.executable, str(ROOT / f"examples/python/{example}.py")])
    assert kinds(seen) == expected
    assert output == "Because \u00fc.\n"


COMMANDS = {
    "redis-cli/ask.sh": "redis-cli",
    "node/ask.mjs": "node",
    "python/append.py": sys.executable,
    "python/update.py": sys.executable,
}


def start(server: Any, name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run an example as its page says; skips where its program is not installed."""
    if shutil.which(COMMANDS[name]) is None:
        pytest.skip(f"{COMMANDS[name]} is not installed")
    first = [] if name.endswith(".sh") else [COMMANDS[name]]
    command = [*first, str(ROOT / "examples" / name), *arguments]
    environment = {**os.environ, "REDIS_URL": server.url, **environment}
    return subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=60)


@pytest.mark.parametrize("name", COMMANDS)
def test_pool_and_tenant_are_chosen_and_any_text_arrives(server: Any, name: str) -> None:
    pieces = ('"', 'quoted" \\ ', "\\n", "a\nb\t", "\u00e4\u20ac\U0001f600", "/%s%%", "\u0001 end")
    tokens = [Token(index, piece, (index,)) for index, piece in enumerate(pieces)]
    left_out = ErrorEvent("unknown_item", "no such item", "context", False, "1-0")
    answer = (left_out, *tokens, Done("stop", {"prompt_tokens": 9}, {"ttft_ms": 5}))
    with pool(server, PoolKeys("ns/examples"), "acme", answer) as seen:
        done = start(server, name, POOL="ns/examples", TENANT="acme")
    if name.endswith((".sh", ".mjs")):
        assert done.returncode != 0
        assert "usage" in done.stderr
        with pool(server, PoolKeys("ns/examples"), "acme", answer) as seen:
            done = start(server, name, "Why?", POOL="ns/examples", TENANT="acme")
        assert "no such item" in done.stderr
    assert done.returncode == 0, done.stderr
    assert kinds(seen)[0] == "Open"
    assert kinds(seen)[-1] == "Finish"
    expected = "".join(pieces)
    # A shell has no use for control characters but blanks.
    assert done.stdout.startswith(expected.replace("\x01", "") if name.endswith(".sh") else expected)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_terminal_error_is_told_and_is_the_exit_status(redis_server: Any, name: str) -> None:
    with pool(redis_server, answer=(Token(0, "half", (1,)), ErrorEvent("deadline", "the deadline has passed"))):
        done = start(redis_server, name, *([] if name.endswith(".py") else ["Why?"]))
    assert done.returncode == 1
    assert "the deadline has passed" in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_an_error_of_the_server_is_told(redis_server: Any, name: str) -> None:
    with redis_server.client() as client:
        client.config_set("maxmemory", 1)
        try:
            done = start(redis_server, name, *([] if name.endswith(".py") else ["Why?"]))
        finally:
            client.config_set("maxmemory", 0)
    assert done.returncode != 0
    assert "maxmemory" in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_a_tenants_own_user_and_its_password_are_all_that_is_needed(server: Any, name: str) -> None:
    """redis-cli takes a lone user in the URL for a password, and was refused."""
    rules = tenant_rules(KEYS, "acme").with_password("secret")
    with server.client() as admin:
        admin.execute_command(*rules.command().split())
        try:
            with pool(server, tenant="acme"):
                done = start(
                    server,
                    name,
                    *([] if name.startswith("python") else ["Why?"]),
                    REDIS_URL=f"redis://{rules.user}@127.0.0.1:{server.port}",
                    TENANT="acme",
                    **{"STREAM2LLM_REDIS_PASSWORD" if name.startswith("python") else "REDISCLI_AUTH": "secret"},
                )
        finally:
            admin.acl_deluser(rules.user)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "Because \u00fc."), done.stderr
