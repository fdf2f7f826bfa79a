"""The parts that both clients share, without any server."""

from __future__ import annotations

from typing import Any

import pytest
from redis import exceptions

from stream2llm import settings
from stream2llm.errors import NoAnswer, RedisRefused, ReplyGone, Unreachable
from stream2llm.events import Accepted, Done, Event, Token, encode
from stream2llm.following import Following
from stream2llm.keys import PoolKeys
from stream2llm.retrying import Retrying, passes


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


LOST = exceptions.ConnectionError("gone")


def test_tries_are_counted_and_delays_grow() -> None:
    retrying = Retrying(5)
    assert [retrying.failed(LOST) for _ in range(4)] == [0.1, 0.2, 0.4, 0.8]
    with pytest.raises(Unreachable, match="Redis cannot be reached: gone"):
        retrying.failed(LOST)


def test_an_outage_is_measured_from_its_first_failure() -> None:
    clock = Clock()
    retrying = Retrying(None, outage_s=30, clock=clock)
    retrying.failed(LOST)
    clock.now_s += 29
    assert retrying.failed(exceptions.BusyLoadingError("loading")) == 0.2
    retrying.succeeded()
    clock.now_s += 100
    assert retrying.failed(exceptions.TimeoutError("slow")) == 0.1
    assert [retrying.failed(LOST) for _ in range(6)][-1] == 2.0
    clock.now_s += 30
    with pytest.raises(Unreachable):
        retrying.failed(LOST)


@pytest.mark.parametrize(
    "error",
    [
        exceptions.AuthenticationError("WRONGPASS"),
        exceptions.NoPermissionError("this user has no permissions"),
        exceptions.ResponseError("WRONGTYPE"),
        exceptions.DataError("bad"),
    ],
)
def test_what_will_not_pass_is_not_tried_again(error: exceptions.RedisError) -> None:
    with pytest.raises(RedisRefused) as caught:
        Retrying(5).failed(error)
    assert caught.value.__cause__ is error


def test_what_may_pass_is_tried_again_and_named_for_what_it_is() -> None:
    retrying = Retrying(2)
    assert retrying.failed(exceptions.ReadOnlyError("READONLY")) == 0.1
    with pytest.raises(RedisRefused, match="OOM"):
        retrying.failed(exceptions.OutOfMemoryError("OOM"))


@pytest.mark.parametrize(
    ("error", "so"),
    [
        (exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), True),
        (exceptions.ReadOnlyError("You can't write against a read only replica."), True),
        (exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."), True),
        (exceptions.ResponseError("MISCONF Errors writing to the AOF file"), True),
        (exceptions.ResponseError("BUSY Redis is busy running a script."), True),
        (exceptions.ResponseError("WRONGTYPE of an OOM kind"), False),
        (exceptions.NoPermissionError("this user has no permissions"), False),
        (exceptions.ResponseError(""), False),
    ],
)
def test_states_of_the_server_that_pass(error: exceptions.RedisError, so: bool) -> None:
    assert passes(error) is so


def test_one_try_is_one_try() -> None:
    with pytest.raises(Unreachable):
        Retrying(1).failed(LOST)


def answer(*events: Event | dict[bytes, bytes], first: int = 1) -> Any:
    entries = []
    for number, event in enumerate(events, first):
        fields = event if isinstance(event, dict) else {k.encode(): v.encode() for k, v in encode(event).items()}
        entries.append((f"{number}-0".encode(), fields))
    return [[b"key", entries]]


def following(clock: Clock, **changes: Any) -> Following:
    return Following(PoolKeys("ns/pool"), "acme", "s1", clock=clock, **changes)


def test_events_come_with_the_id_to_resume_after_and_end_with_the_terminal_one() -> None:
    place = following(Clock())
    assert place.key == "s2l:{ns/pool}:reply:acme:s1"
    assert place.after == "0"
    accepted, done = Accepted("p", 1), Done("stop")
    assert place.take(answer(accepted), exists=True) == [("1-0", accepted)]
    assert not place.ended
    unknown, junk = {b"event": b"weather", b"data": b"{}"}, {b"event": b"token", b"data": b"{"}
    found = place.take(answer(unknown, junk, done, Token(0, "late", (1,)), first=2), exists=True)
    assert found == [("4-0", done)]
    assert place.ended


def test_nobody_there_names_pool_and_tenant() -> None:
    clock = Clock()
    place = following(clock, accept_timeout_s=10)
    clock.now_s += 9
    assert place.take(None, exists=False) == []
    clock.now_s += 1
    with pytest.raises(NoAnswer, match=r"stream s1: no router .* 10\.0 s; .* pool ns/pool, .* tenant acme\?"):
        place.take([], exists=False)


def test_silence_counts_from_the_last_event() -> None:
    clock = Clock()
    place = following(clock, timeout_s=5, accept_timeout_s=1)
    place.take(answer(Accepted("p", 1)), exists=True)
    clock.now_s += 4
    place.take(None, exists=True)
    place.take(answer(Token(0, "a", (1,)), first=2), exists=True)
    clock.now_s += 4
    place.take(None, exists=True)
    clock.now_s += 1
    with pytest.raises(NoAnswer, match=r"no event for 5\.0 s"):
        place.check()


def test_without_limits_it_waits_for_ever() -> None:
    clock = Clock()
    place = following(clock, accept_timeout_s=None)
    clock.now_s += 10**9
    assert place.take(None, exists=False) == []


def test_a_reply_that_was_there_and_is_not_any_more_is_told() -> None:
    with pytest.raises(ReplyGone, match="expired or is lost"):
        following(Clock(), after="5-0").take(None, exists=False)
    place = following(Clock(), after="5-0")
    assert place.take(None, exists=True) == []
    place = following(Clock())
    place.take(answer(Accepted("p", 1)), exists=True)
    with pytest.raises(ReplyGone):
        place.take(None, exists=False)


def test_a_read_blocks_no_longer_than_the_caller_waits_and_never_for_ever() -> None:
    clock = Clock()
    assert following(clock).block_ms() == settings.BLOCK_MS
    place = following(clock, timeout_s=0.25)
    assert place.block_ms() == 250
    clock.now_s += 1
    assert place.block_ms() == 1


@pytest.mark.parametrize("text", ["", "zzz", "1-", "-1", "1-2-3", "1764482400000-0 ", "18446744073709551616", "٣-0"])
def test_an_event_id_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no event id; they look like 1764482400000-0, and 0 is the beginning"):
        following(Clock(), after=text)


@pytest.mark.parametrize("text", ["0", "5", "1764482400000-0", "18446744073709551615-18446744073709551615"])
def test_event_ids(text: str) -> None:
    assert following(Clock(), after=text).after == text


@pytest.mark.parametrize("stream", ["", "not ok", "x" * 129, "a\n"])
def test_a_stream_id_that_is_none_is_refused(stream: str) -> None:
    with pytest.raises(ValueError, match="must be 1 to 128 of A-Z"):
        Following(PoolKeys("ns/pool"), "acme", stream)
