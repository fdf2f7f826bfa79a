"""The gateway's parts that need no server."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.errors import ErrorCode, RedisRefused, StreamError, Unreachable, stream_error
from stream2llm.tokens import TokenRecord, token_digest
from stream2llm_router.gateway.authenticating import FRESH_S, Authenticator
from stream2llm_router.gateway.event_streams import ends, frame
from stream2llm_router.gateway.hub import MAX_QUEUED_EVENTS, Reading, entry_order
from stream2llm_router.gateway.limits import SETTLE_S, LimitReached, OpenStreams, Slots
from stream2llm_router.gateway.operations import Lines, LineTooLong, fields_of, parse_open
from stream2llm_router.gateway.problems import Problem, problem_of
from stream2llm_router.gateway.token_files import TokensFile


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Store:
    """Tokens and tenants as Redis would have them."""

    def __init__(self) -> None:
        self.records = {token_digest("good"): TokenRecord(token_digest("good"), "acme")}
        self.tenants = {"acme"}
        self.asked = 0

    async def record(self, digest: str) -> TokenRecord | None:
        self.asked += 1
        return self.records.get(digest)

    async def serves(self, tenant: str) -> bool:
        return tenant in self.tenants


def test_a_known_token_is_looked_up_once_in_a_while_and_a_revoked_one_ends() -> None:
    store, clock = Store(), Clock()
    authenticator = Authenticator(store, clock=clock)

    async def body() -> None:
        for _ in range(3):
            assert await authenticator.tenant("good") == "acme"
        assert store.asked == 1
        store.records.clear()
        clock.now_s += FRESH_S - 0.1
        assert await authenticator.tenant("good") == "acme"
        clock.now_s += 0.2
        for token in ("good", "bad", "", None):
            with pytest.raises(Problem) as caught:
                await authenticator.tenant(token)
            assert caught.value.status_code == 401

    asyncio.run(body())


def test_a_token_of_a_tenant_that_is_not_served_is_forbidden() -> None:
    store = Store()
    store.tenants = {"globex"}
    with pytest.raises(Problem, match="tenant 'acme' is not served") as caught:
        asyncio.run(Authenticator(store).tenant("good"))
    assert (caught.value.status_code, caught.value.code) == (403, "tenant_not_served")


def test_without_tokens_everybody_is_one_tenant() -> None:
    assert asyncio.run(Authenticator(Store(), open_to="default").tenant(None)) == "default"


def test_a_tokens_file_is_read_again_and_a_broken_one_leaves_the_last(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    with pytest.raises(FileNotFoundError):
        TokensFile(str(file))
    file.write_text(f"acme:{'1' * 64}\n")
    tokens = TokensFile(str(file))
    assert tokens() == {"1" * 64: "acme"}
    file.write_text(f"acme:{'1' * 64}\nglobex:{'2' * 64}\n")
    assert tokens() == {"1" * 64: "acme", "2" * 64: "globex"}
    file.write_text("nonsense\n")
    assert tokens() == {"1" * 64: "acme", "2" * 64: "globex"}
    # Kubernetes swaps a link, so the file may be another one of the same size.
    os.replace(tmp_path / "tokens", tmp_path / "old")
    assert tokens() == {"1" * 64: "acme", "2" * 64: "globex"}
    with pytest.raises(ValueError, match="old: line 1 is not TENANT:SHA256"):
        TokensFile(str(tmp_path / "old"))


@given(st.lists(st.binary(max_size=30)), st.integers(1, 40))
def test_lines_are_the_same_however_the_body_is_cut(pieces: list[bytes], max_bytes: int) -> None:
    lines = Lines(max_bytes)
    found = [line for piece in pieces for line in lines.feed(piece)] + list(lines.end())
    whole = b"".join(pieces).split(b"\n")
    expected = [None if len(line) > max_bytes else line for line in whole if line.strip() or len(line) > max_bytes]
    assert [None if isinstance(line, LineTooLong) else line for line in found] == expected


def test_a_line_that_is_too_long_is_not_kept() -> None:
    lines = Lines(1000)
    for _ in range(100):
        assert list(lines.feed(b"x" * 1000)) == []
    assert lines._pieces == []
    (first,) = lines.feed(b"\n")
    assert isinstance(first, LineTooLong)
    assert list(lines.feed(b"next\n")) == [b"next"]


def test_operations_become_entries() -> None:
    assert parse_open(b'{"op": "open", "prompt": "{context}"}').prompt == "{context}"
    assert fields_of("s", b'{"op": "update", "context": [{"id": "a", "text": "A"}, {"id": "b"}], "version": 2}') == {
        b"stream": b"s",
        b"op": b"update",
        b"context": b'[{"id":"a","text":"A"},{"id":"b"}]',
        b"version": b"2",
    }
    assert fields_of("s", b'{"op": "cancel"}') == {b"stream": b"s", b"op": b"cancel"}
    assert fields_of("s", b'{"op": "append", "tokens": [1, 2.0], "chunk": "c"}')[b"tokens"] == b"[1,2]"
    for line, field in (
        (b"{", None),
        (b"[]", None),
        (b'{"op": "reopen"}', "op"),
        (b'{"text": "a"}', "op"),
        (b'{"op": "append", "text": 1}', "text"),
        (b'{"op": "append", "tokens": [1.5]}', "tokens.0"),
        (b'{"op": "append"}', "text"),
        (b'{"op": "finish", "expect": -1}', "expect"),
    ):
        with pytest.raises(StreamError) as caught:
            fields_of("s", line)
        assert (caught.value.code, caught.value.field) == (ErrorCode.MALFORMED, field)


@given(st.text(), st.text())
def test_a_frame_is_one_event_whatever_is_in_it(event: str, data: str) -> None:
    body = frame(event, json.dumps(data), "1-0").decode()
    assert body.endswith("\n\n")
    assert "\n\n" not in body[:-2]
    lines = body[:-2].split("\n")
    assert [line.partition(": ")[0] for line in lines] == ["id", "event", "data"]
    assert json.loads(lines[2].removeprefix("data: ")) == data


def test_the_terminal_event_is_known_and_strange_ones_are_none() -> None:
    assert ends({b"event": b"done", b"data": b'{"finish_reason": "stop"}'})
    assert ends({b"event": b"error", b"data": b'{"code": "lost", "message": "x", "terminal": true}'})
    assert not ends({b"event": b"error", b"data": b'{"code": "lost", "message": "x", "terminal": false}'})
    for event, data in ((b"token", b'{"index": 0, "text": "", "token_ids": []}'), (b"new", b"{}"), (b"done", b"[]")):
        assert not ends({b"event": event, b"data": data})


def test_a_reader_that_does_not_read_leaves_the_common_read() -> None:
    reading = Reading("k", "0")
    reading.push([(f"{number}-0".encode(), {}) for number in range(1, 11)])
    # A second reader of the same reply makes it be read from an earlier place: what is known is not repeated.
    reading.push([(f"{number}-0".encode(), {}) for number in range(5, 13)])
    assert [int(entry_id.split(b"-")[0]) for entry_id, _ in reading.events] == list(range(1, 13))
    assert (reading.after, reading.behind) == ("12-0", False)
    reading.push([(f"{number}-0".encode(), {}) for number in range(13, 13 + MAX_QUEUED_EVENTS)])
    assert (len(reading.events), reading.after, reading.behind) == (12, "12-0", True)


def test_entries_are_ordered_by_both_parts_of_their_id() -> None:
    assert sorted(["10-0", "9-2", "9-10", "0"], key=entry_order) == ["0", "9-2", "9-10", "10-0"]


def test_slots_are_each_tenants_own() -> None:
    slots = Slots("readers", 2)
    slots.take("a")
    slots.take("a")
    slots.take("b")
    with pytest.raises(LimitReached, match="2 readers at a time"):
        slots.take("a")
    slots.give_back("a")
    slots.take("a")
    assert slots.total == 3


def test_open_streams_are_asked_for_only_at_the_limit_and_forgotten_when_they_have_ended() -> None:
    clock = Clock()
    streams = OpenStreams(2, clock)
    for name in ("x", "y", "x"):
        assert not streams.full("a", name)
        streams.add("a", name)
    assert not streams.full("a", "x")
    assert streams.full("a", "z")
    assert not streams.full("b", "z")
    assert streams.to_prune("a") == ["x", "y"]
    assert streams.to_prune("a") == []
    # A route that is not there yet is no sign of an end.
    streams.prune("a", {"x": None, "y": "open"})
    assert streams.full("a", "z")
    streams.prune("a", {"y": "ended"})
    assert not streams.full("a", "z")
    streams.add("a", "z")
    clock.now_s += SETTLE_S + 1
    assert streams.to_prune("a") == ["x", "z"]
    streams.prune("a", {"x": None, "z": "held"})
    assert streams.total == 1


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (stream_error("chunk_too_large", "x"), 413, "chunk_too_large"),
        (stream_error("open_conflict", "x"), 409, "open_conflict"),
        (stream_error("invalid_params", "x"), 422, "invalid_params"),
        (Unreachable("at 10.0.0.1"), 503, "redis_unreachable"),
        (RedisRefused("NOPERM key secret"), 503, "redis_refused"),
        (LimitReached("readers", 1), 429, "too_many_requests"),
        (RuntimeError("secret"), 500, "internal"),
    ],
)
def test_errors_become_answers_that_tell_no_secrets(error: Exception, status: int, code: str) -> None:
    problem = problem_of(error)
    assert (problem.status_code, problem.code) == (status, code)
    assert "secret" not in problem.message
    assert "10.0.0.1" not in problem.message
    assert problem.body("r")["error"] == {
        "code": code,
        "message": problem.message,
        "field": problem.field,
        "request_id": "r",
    }
