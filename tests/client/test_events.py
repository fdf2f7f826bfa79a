"""Reply events, errors and the exceptions made of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.errors import (
    ErrorCode,
    InvalidRequest,
    Overloaded,
    ServerFailed,
    StreamError,
    StreamTimedOut,
    stream_error,
)
from stream2llm.events import Accepted, Done, ErrorEvent, Event, Prefill, Token, encode, is_terminal, parse_event

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
COUNTS = st.integers(0, 2**53)
EVENTS: st.SearchStrategy[Event] = (
    st.builds(Accepted, TEXTS, COUNTS)
    | st.builds(Prefill, COUNTS, COUNTS, COUNTS)
    | st.builds(Token, COUNTS, TEXTS, st.lists(COUNTS, max_size=4).map(tuple))
    | st.builds(Done, TEXTS, st.dictionaries(TEXTS, COUNTS, max_size=3), st.dictionaries(TEXTS, COUNTS | st.none()))
    | st.builds(ErrorEvent, TEXTS, TEXTS, st.none() | TEXTS, st.booleans(), st.none() | TEXTS)
)


def raw(event: str, data: object) -> dict[bytes, bytes]:
    return {b"event": event.encode(), b"data": data if isinstance(data, bytes) else json.dumps(data).encode()}


@given(EVENTS)
def test_an_event_is_what_it_was_after_encoding_and_parsing(event: Event) -> None:
    fields = encode(event)
    assert list(fields) == ["event", "data"]
    assert parse_event({name.encode(): value.encode() for name, value in fields.items()}) == event


def test_newer_kinds_are_skipped_and_newer_keys_dropped() -> None:
    assert parse_event(raw("weather", {"sunny": True})) is None
    assert parse_event(raw("accepted", {"pod": "p", "attempt": 1, "colour": "red"})) == Accepted("p", 1)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {b"event": b"done"},
        raw("done", b"{"),
        raw("done", b"[" * 100_000),
        raw("done", []),
        raw("done", 3),
        raw("done", {}),
        raw("token", {"index": 0, "text": "a"}),
        raw("token", {"index": 0, "text": "a", "token_ids": 3}),
        {b"event": b"\xff", b"data": b"{}"},
    ],
)
def test_what_is_no_event_is_a_value_error(fields: dict[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="not a reply event"):
        parse_event(fields)


def test_which_events_are_terminal() -> None:
    assert is_terminal(Done("stop"))
    assert is_terminal(ErrorEvent("lost", "", terminal=True))
    assert not is_terminal(ErrorEvent("malformed", "", terminal=False))
    assert not any(map(is_terminal, (Accepted("p", 1), Prefill(1, 1, 0), Token(0, "", ()))))


SERVER = {ErrorCode.ENGINE_ERROR, ErrorCode.MODEL_CHANGED, ErrorCode.ATTEMPTS_EXHAUSTED, ErrorCode.LOST}


@pytest.mark.parametrize("code", list(ErrorCode))
def test_each_code_has_its_exception(code: ErrorCode) -> None:
    error = stream_error(code, "words", field="params", terminal=False, ingress_id="1-0")
    kinds: dict[type[StreamError], set[ErrorCode]] = {
        StreamTimedOut: {ErrorCode.IDLE_TIMEOUT, ErrorCode.DEADLINE},
        Overloaded: {ErrorCode.OVERLOADED},
        ServerFailed: SERVER | {ErrorCode.INTERNAL},
    }
    expected = next((kind for kind, codes in kinds.items() if code in codes), InvalidRequest)
    assert type(error) is expected
    assert (error.code, error.message, error.field, error.terminal) == (code, "words", "params", False)
    assert str(error) == f"{code}: words (field params)"


def test_a_code_of_a_later_version_counts_as_internal() -> None:
    error = stream_error("cosmic_ray", "words")
    assert isinstance(error, ServerFailed)
    assert error.code == ErrorCode.INTERNAL
