"""The `stream2llm` command as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from stream2llm import Done, Token
from stream2llm.events import ErrorEvent, encode
from stream2llm.keys import PoolKeys

pytestmark = pytest.mark.redis
KEYS = PoolKeys()


def run(server: Any, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "STREAM2LLM_REDIS": server.url}
    command = [sys.executable, "-m", "stream2llm.commands.main", *arguments]
    return subprocess.run(command, env=environment, input=stdin, capture_output=True, text=True, timeout=60)


def test_send_writes_the_fields_as_they_are(server: Any) -> None:
    done = run(server, "send", "append", "s1", "text=-", "chunk=c=1", stdin="from stdin")
    assert done.returncode == 0, done.stderr
    with server.client() as client:
        [(entry_id, fields)] = client.xrange(KEYS.ingress("default"))
    assert done.stdout.strip() == entry_id.decode()
    assert fields == {b"stream": b"s1", b"op": b"append", b"text": b"from stdin", b"chunk": b"c=1"}


def test_watch_prints_events_up_to_the_terminal_one(server: Any) -> None:
    with server.client() as client:
        for event in (Token(0, "hi", (1,)), Done("stop")):
            client.xadd(KEYS.reply("default", "s1"), encode(event))
    done = run(server, "watch", "s1")
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["token", "done"]


def test_watch_tells_a_terminal_error_by_its_status(server: Any) -> None:
    with server.client() as client:
        client.xadd(KEYS.reply("default", "s1"), encode(ErrorEvent("overloaded", "no room", terminal=True)))
    done = run(server, "watch", "s1")
    assert (done.returncode, len(done.stdout.splitlines())) == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("watch", "not ok"), "argument stream: stream 'not ok' must be 1 to 128 of A-Z"),
        (("watch", ""), "argument stream: stream '' must be"),
        (("watch", "s1", "--after", "zzz"), "argument --after: 'zzz' is no event id; they look like 1764482400000-0"),
        (("watch", "s1", "--after", "18446744073709551616-0"), "is no event id"),
    ],
)
def test_ids_that_are_none_are_explained(redis_server: Any, arguments: tuple[str, ...], words: str) -> None:
    done = run(redis_server, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_watching_a_stream_that_nobody_knows_says_what_it_waits_for(server: Any) -> None:
    done = run(server, "watch", "s1", "--timeout-seconds", "2.5")
    said, ended = done.stderr.splitlines()
    assert "no event of stream s1 yet in pool default/default for tenant default; waiting" in said
    assert "stream s1: no router has taken it" in ended
    assert done.returncode == 1


def test_a_url_without_a_scheme_is_not_shown(server: Any) -> None:
    done = run(server, "watch", "s1", "--redis", "secret")
    assert done.returncode == 2
    assert "must begin with redis:// or rediss://, not with no scheme at all" in done.stderr
    assert "secret" not in done.stderr


def test_tenants_are_added_listed_and_removed(server: Any) -> None:
    assert run(server, "tenant", "add", "acme").stdout == "acme: added\n"
    assert run(server, "tenant", "list").stdout == "acme\n"
    assert run(server, "tenant", "remove", "acme").stdout == "acme: removed\n"
    refused = run(server, "tenant", "add", "Not_OK")
    assert refused.returncode == 2
    assert "tenant 'Not_OK' must be" in refused.stderr


def test_an_unreachable_server_is_one_line(server: Any) -> None:
    done = run(server, "watch", "s1", "--redis", "redis://127.0.0.1:1", "--timeout-seconds", "0.1")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


def test_a_password_in_an_argument_is_refused(server: Any) -> None:
    done = run(server, "watch", "s1", "--redis", "redis://:secret@127.0.0.1:1")
    assert done.returncode == 2
    assert "a password in the Redis URL shows in process lists" in done.stderr
    assert "secret" not in done.stderr
