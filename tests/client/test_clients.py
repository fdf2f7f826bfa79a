"""Both clients against real servers; the pod's side is written by hand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from stream2llm import (
    Answer,
    AsyncClient,
    Client,
    Done,
    ErrorEvent,
    InvalidRequest,
    NoAnswer,
    Overloaded,
    StreamTimedOut,
    Token,
    Unreachable,
)
from stream2llm.events import Event, encode
from stream2llm.keys import PoolKeys

pytestmark = pytest.mark.redis
KEYS = PoolKeys()
DONE = Done("stop", {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}, {"ttft_ms": 7})
PROMPT = "C: {context} Q: why?"


@pytest.fixture
def raw(server: Any) -> Any:
    with server.client() as client:
        yield client


def say(raw: redis.Redis, stream: str, *events: Event) -> None:
    for event in events:
        raw.xadd(KEYS.reply("default", stream), encode(event))  # type: ignore[arg-type]


def written(raw: redis.Redis) -> list[dict[bytes, bytes]]:
    entries: Any = raw.xrange(KEYS.ingress("default"))
    return [fields for _, fields in entries]


def use(url: str, work: Callable[[Client], Any]) -> Any:
    with Client(url) as client:
        return work(client)


def test_a_stream_is_written_as_the_protocol_says(server: Any, raw: redis.Redis) -> None:
    with Client(server.url) as client:
        stream = client.open(prompt=PROMPT, params={"max_tokens": 2}, stream="s")
        stream.append("one")
        stream.append(tokens=[1, 2], chunk="mine")
        stream.update([("a", "text"), {"id": "b", "text": "x"}], version=3)
        stream.finish("last", expect=3)
        stream.cancel()
    opened, first, second, update, finish, cancel = written(raw)
    assert opened == {b"stream": b"s", b"op": b"open", b"prompt": PROMPT.encode(), b"params": b'{"max_tokens":2}'}
    assert (first[b"text"], len(first[b"chunk"])) == (b"one", 24)
    assert (second[b"tokens"], second[b"chunk"]) == (b"[1,2]", b"mine")
    assert update[b"context"] == b'[{"id":"a","text":"text"},{"id":"b","text":"x"}]'
    assert update[b"version"] == b"3"
    assert (finish[b"text"], finish[b"expect"]) == (b"last", b"3")
    assert cancel == {b"stream": b"s", b"op": b"cancel"}


def test_an_answer_is_put_together_with_its_warnings(server: Any, raw: redis.Redis) -> None:
    warning = ErrorEvent("unknown_item", "no item x", "context", False, "1-0")
    say(raw, "s", Token(0, "be", (5,)), warning, Token(1, "cause", (6,)), DONE)
    expected = ("because", (5, 6), "stop", 7)

    def checked(answer: Answer) -> None:
        assert (answer.text, answer.token_ids, answer.finish_reason, answer.timings["ttft_ms"]) == expected
        assert [(w.code, w.field, w.ingress_id) for w in answer.warnings] == [("unknown_item", "context", "1-0")]

    with Client(server.url) as client:
        checked(client.stream("s").answer(timeout_s=60))

    async def main() -> Answer:
        async with AsyncClient(server.url) as client:
            return await client.stream("s").answer(timeout_s=60)

    checked(asyncio.run(main()))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("deadline", StreamTimedOut),
        ("overloaded", Overloaded),
        ("marker", InvalidRequest),
        ("idle_timeout", StreamTimedOut),
    ],
)
def test_a_terminal_error_is_raised_by_its_type(
    server: Any, raw: redis.Redis, code: str, kind: type[Exception]
) -> None:
    say(raw, "s", ErrorEvent(code, "so it is", None, True, None))
    with pytest.raises(kind, match="so it is"):
        use(server.url, lambda client: client.stream("s").answer(timeout_s=60))


def test_events_resume_after_an_id(server: Any, raw: redis.Redis) -> None:
    say(raw, "s", Token(0, "a", (1,)), Token(1, "b", (2,)), DONE)
    with Client(server.url) as client:
        events = client.stream("s").events_with_ids(timeout_s=60)
        first_id, _ = next(events)
        rest = [event for _, event in client.stream("s").events_with_ids(after=first_id, timeout_s=60)]
    assert rest == [Token(1, "b", (2,)), DONE]


def test_events_come_as_they_are_written(server: Any, raw: redis.Redis) -> None:
    writer = threading.Timer(0.3, lambda: say(raw, "s", Token(0, "late", (1,)), DONE))
    writer.start()
    assert use(server.url, lambda client: client.stream("s").answer(timeout_s=60)).text == "late"
    writer.join()


def test_silence_names_pool_and_tenant(server: Any) -> None:
    with pytest.raises(NoAnswer, match="is one running for pool default/default, and does it serve tenant default"):
        use(server.url, lambda client: client.stream("s").answer(timeout_s=0.1))


@pytest.mark.parametrize(
    "mistake",
    [
        lambda client: client.open(prompt="no marker"),
        lambda client: client.open(prompt=PROMPT, messages=[{"role": "user", "content": PROMPT}]),
        lambda client: client.open(prompt=PROMPT, options={"ttl": 3}),
        lambda client: client.open(prompt=PROMPT, stream="a b"),
        lambda client: client.open(prompt=PROMPT, params={"seed": object()}),
        lambda client: client.stream("s").append(),
        lambda client: client.stream("s").append("x" * (2 << 20)),
        lambda client: client.stream("s").append("\ud800"),
    ],
)
def test_mistakes_are_found_before_they_are_sent(
    server: Any, raw: redis.Redis, mistake: Callable[[Client], Any]
) -> None:
    with pytest.raises(InvalidRequest):
        use(server.url, mistake)
    assert written(raw) == []


def test_a_server_that_is_away_is_unreachable() -> None:
    with pytest.raises(Unreachable):
        use("redis://127.0.0.1:1", lambda client: client.open(prompt=PROMPT))
