"""What a pod makes of the difference between what it holds and what Redis says, and how it measures its own speed."""

from __future__ import annotations

import pytest

from stream2llm.events import Accepted, ErrorEvent, Event, Token, encode
from stream2llm_pod.serving.auditing import Finding, Held, Stored, compare
from stream2llm_pod.serving.carrying import Carried, IncompleteReply, read_reply
from stream2llm_pod.serving.rates import PrefillRate

HELD = Held(attempt=2, incarnation="i", open_id="7-0", applied_seq=5, written_tokens=3)


def stored(**changes: object) -> Stored:
    values: dict[str, object] = {
        "state": "open",
        "attempt": 2,
        "incarnation": "i",
        "open_id": "7-0",
        "seq": 5,
        "next_token": 3,
    }
    return Stored(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("route", "was_there", "finding"),
    [
        (stored(), True, Finding.FINE),
        (stored(next_token=4), True, Finding.FINE),
        (stored(seq=6), True, Finding.BEHIND),
        (stored(seq=4), True, Finding.LOST),
        (stored(next_token=2), True, Finding.LOST),
        (None, True, Finding.LOST),
        (None, False, Finding.DROP),
        (stored(state="ended"), True, Finding.DROP),
        (stored(attempt=3), True, Finding.DROP),
        (stored(attempt=1), True, Finding.DROP),
        (stored(incarnation="j"), True, Finding.DROP),
        (stored(open_id="8-0", attempt=1, seq=1), True, Finding.DROP),
    ],
)
def test_compare(route: Stored | None, was_there: bool, finding: Finding) -> None:
    assert compare(HELD, route, was_there=was_there) is finding


def reply(*events: Event) -> list[tuple[bytes, dict[bytes, bytes]]]:
    return [
        (f"{100 + i}-0".encode(), {name.encode(): value.encode() for name, value in encode(event).items()})
        for i, event in enumerate(events)
    ]


def test_a_reply_is_read_back() -> None:
    entries = reply(
        Accepted("p", 1),
        ErrorEvent("malformed", "m", None, False, "5-0"),
        Token(0, "a", (1, 2)),
        Token(2, "", ()),
        Accepted("q", 2),
        Token(2, "b", (3,)),
    )
    assert read_reply(entries, 3) == Carried((1, 2, 3), "ab", 102, frozenset({"5-0"}))


def test_entries_of_a_reply_that_are_no_events_are_skipped() -> None:
    entries = [(b"1-0", {b"event": b"token", b"data": b"{"}), (b"2-0", {b"x": b"y"}), *reply(Token(0, "a", (1,)))]
    assert read_reply(entries, 1).token_ids == (1,)


@pytest.mark.parametrize("next_token", [0, 2])
def test_a_reply_must_hold_what_the_route_says(next_token: int) -> None:
    with pytest.raises(IncompleteReply, match=f"{next_token} tokens were sent and 1 are there"):
        read_reply(reply(Token(0, "a", (1,)), Token(5, "f", (6,))), next_token)


def test_only_busy_intervals_say_how_fast_a_pod_is() -> None:
    rate = PrefillRate()
    assert rate.observe(0, 500, 0.0) is None
    assert rate.observe(1_000, 500, 1.0) == 1_000.0
    assert rate.observe(1_100, 0, 2.0) == 1_000.0
    assert rate.observe(9_000, 500, 3.0) == 1_000.0
    assert rate.observe(11_000, 500, 4.0) == pytest.approx(1_200.0)
    assert rate.observe(11_010, 500, 5.0) == pytest.approx(1_200.0)
