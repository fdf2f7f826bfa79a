"""`stream2llm ask` as a process, against a stand-in for router and pod."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis_proxy import PASS, SILENT, RedisProxy, name_of

from stream2llm.entries import Append, Cancel, Update

pytestmark = pytest.mark.redis


def ask(server: Any, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "STREAM2LLM_REDIS": server.url}
    command = [sys.executable, "-m", "stream2llm.commands.main", "ask", *arguments]
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        # Under nohup it would be ignored, here and in all children.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )


@pytest.fixture
def documents(tmp_path: Path) -> list[str]:
    paths = [tmp_path / "one.txt", tmp_path / "two.txt"]
    for path in paths:
        path.write_text(f"text of {path.stem}")
    return [argument for path in paths for argument in ("--doc", str(path))]


def test_documents_are_appended_and_the_answer_is_printed(
    server: Any, respond: Callable[..., Any], documents: list[str]
) -> None:
    responder = respond()
    process = ask(server, "What about {context}?", *documents, "--max-tokens", "7")
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "text of one|text of two" in output
    assert "first token after" in errors
    assert "ttft_ms=7" in errors
    assert "open_to_first_token_ms" not in errors
    (opened,) = responder.opened.values()
    assert opened.messages[0]["content"].endswith("\n\nQuestion: What about {context}?")
    assert opened.params == {"max_tokens": 7, "temperature": 0}
    assert [entry.chunk for entry in responder.entries if isinstance(entry, Append)] == ["0-one.txt", "1-two.txt"]


def test_the_context_can_be_replaced_and_figures_printed_as_json(
    server: Any, respond: Callable[..., Any], documents: list[str]
) -> None:
    responder = respond("ns/p", "acme")
    process = ask(server, "Why?", *documents, "--update", "--json", "--pool", "ns/p", "--tenant", "acme")
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    figures = json.loads(output)
    assert "text of one|text of two" in figures["text"]
    assert figures["timings"]["ttft_ms"] == 7
    assert figures["usage"]["prompt_tokens"] == 3
    assert (figures["finish_reason"], figures["warnings"]) == ("stop", [])
    assert figures["first_token_s"] > 0
    updates = [entry for entry in responder.entries if isinstance(entry, Update)]
    assert [[(item.id, item.text is None) for item in update.context] for update in updates] == [
        [("0-one.txt", False)],
        [("0-one.txt", True), ("1-two.txt", False)],
    ]


def test_nobody_there_is_one_line_and_the_stream_is_cancelled(server: Any) -> None:
    process = ask(server, "Why?", "--timeout-seconds", "0.2", "--pool", "ns/p", "--tenant", "acme")
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (1, "")
    assert len(errors.splitlines()) == 1
    assert "is one running for pool ns/p, and does it serve tenant acme?" in errors
    with server.client() as client:
        entries = client.xrange("s2l:{ns/p}:ingress:acme")
    assert [fields[b"op"] for _, fields in entries] == [b"open", b"finish", b"cancel"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cancels_the_stream(
    server: Any, respond: Callable[..., Any], documents: list[str], number: signal.Signals
) -> None:
    responder = respond()
    process = ask(server, "Why?", *documents, "--delay-ms", "60000")
    give_up_s = time.monotonic() + 60
    while not responder.opened and time.monotonic() < give_up_s:
        time.sleep(0.01)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (128 + number, "", "")
    while not isinstance(responder.entries[-1], Cancel) and time.monotonic() < give_up_s:
        time.sleep(0.01)
    assert isinstance(responder.entries[-1], Cancel)


def test_a_signal_while_the_open_waits_for_its_answer_cancels_what_was_written(redis_server: Any) -> None:
    with redis_server.client() as client:
        client.flushall()
        answered = threading.Event()

        def decide(command: list[bytes]) -> str:
            return SILENT if name_of(command) == "XADD" and not answered.is_set() else PASS

        proxy = RedisProxy(redis_server.port, decide)
        environment = {**os.environ, "STREAM2LLM_REDIS": proxy.url}
        command = [sys.executable, "-m", "stream2llm.commands.main", "ask", "Why?"]
        process = subprocess.Popen(command, env=environment)
        try:
            give_up_s = time.monotonic() + 60
            while not client.xlen("s2l:{default/default}:ingress:default") and time.monotonic() < give_up_s:
                time.sleep(0.01)
            answered.set()
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 128 + signal.SIGTERM
        finally:
            process.kill()
            process.wait()
            proxy.close()
        entries = client.xrange("s2l:{default/default}:ingress:default")
        assert [fields[b"op"] for _, fields in entries] == [b"open", b"cancel"]
        assert len({fields[b"stream"] for _, fields in entries}) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--doc", "missing.txt"), "No such file or directory: 'missing.txt'"),
        (("--delay-ms", "-1"), "--delay-ms must not be negative, not -1"),
        (("--tenant", "Not_OK"), "tenant 'Not_OK' must be"),
        (("--pool", "one"), "pool 'one' is not NAMESPACE/NAME"),
    ],
)
def test_mistakes_are_one_line(redis_server: Any, arguments: tuple[str, ...], words: str) -> None:
    process = ask(redis_server, "Why?", *arguments)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert len(errors.splitlines()) == 1
    assert words in errors


def test_a_document_that_is_no_text_is_named(redis_server: Any, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"ab\xff")
    process = ask(redis_server, "Why?", "--doc", str(tmp_path / "binary"))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "binary is not UTF-8 text (byte 2)" in errors
