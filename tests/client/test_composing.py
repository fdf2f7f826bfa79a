"""What the clients check before anything is sent, and how answers are put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stream2llm import composing
from stream2llm.composing import AnswerBuilder, append_fields, finish_fields, open_fields, update_fields
from stream2llm.entries import Append, ContextItem, Finish, StreamOptions, Update, parse_entry
from stream2llm.errors import ErrorCode, InvalidRequest, Overloaded, ReplyGone
from stream2llm.events import Accepted, Done, ErrorEvent, Prefill, Token

C = ErrorCode


def opening(**changes: Any) -> Callable[[], Any]:
    values = {"messages": None, "prompt": "{context}", "params": None, "options": None} | changes
    return lambda: open_fields("s", **values)


loop: list[Any] = []
loop.append(loop)
REFUSED: list[tuple[Callable[[], Any], ErrorCode, str | None]] = [
    (lambda: append_fields("bad id", "x", None, None), C.MALFORMED, "stream"),
    (lambda: append_fields("s", None, None, None), C.MALFORMED, "text"),
    (lambda: append_fields("s", "x", [1], None), C.MIXED_INPUT, "tokens"),
    (lambda: append_fields("s", "x" * (1 << 20) + "x", None, None), C.CHUNK_TOO_LARGE, "text"),
    (lambda: append_fields("s", "\ud800", None, None), C.MALFORMED, None),
    (lambda: append_fields("s", 5, None, None), C.MALFORMED, None),  # type: ignore[arg-type]
    (lambda: append_fields("s", "x", None, ""), C.MALFORMED, "chunk"),
    (lambda: append_fields("s", None, [1.5], None), C.MALFORMED, "tokens"),  # type: ignore[list-item]
    (lambda: append_fields("s", None, [True], None), C.MALFORMED, "tokens"),
    (lambda: append_fields("s", None, [-1], None), C.MALFORMED, "tokens"),
    (lambda: update_fields("s", ["ab"], None), C.MALFORMED, "context"),  # type: ignore[list-item]
    (lambda: update_fields("s", [{"text": "x"}], None), C.MALFORMED, "context"),
    (lambda: update_fields("s", [("a", 1)], None), C.MALFORMED, "context"),  # type: ignore[list-item]
    (lambda: update_fields("s", [("a", "b")] * 4097, None), C.TOO_MANY_ITEMS, "context"),
    (lambda: finish_fields("s", None, None, None, -1), C.MALFORMED, "expect"),
    (opening(prompt=None), C.MALFORMED, "messages"),
    (opening(prompt="none"), C.MARKER, "prompt"),
    (opening(prompt=None, messages=["{context}"]), C.MALFORMED, None),
    (opening(params={"a": object()}), C.MALFORMED, None),
    (opening(params={"a": loop}), C.MALFORMED, None),
    (opening(params={"a": float("nan")}), C.MALFORMED, None),
    (opening(params=[1]), C.MALFORMED, None),
    (opening(options={"deadline_ms": -1}), C.INVALID_OPTIONS, "options.deadline_ms"),
    (opening(options={"deadline": 1}), C.INVALID_OPTIONS, "options"),
    (opening(options=StreamOptions(on_timeout="explode")), C.INVALID_OPTIONS, "options.on_timeout"),
]


@pytest.mark.parametrize(("compose", "code", "field"), REFUSED)
def test_what_the_router_would_refuse_is_not_sent(
    compose: Callable[[], Any], code: ErrorCode, field: str | None
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        compose()
    assert (caught.value.code, caught.value.field, caught.value.terminal) == (code, field, False)


class Integer:
    """As an integer of another library."""

    def __index__(self) -> int:
        return 7


def test_tokens_may_be_any_integers() -> None:
    entry = parse_entry(append_fields("s", None, iter([Integer(), 8]), "c"))  # type: ignore[list-item]
    assert entry == Append("s", tokens=(7, 8), chunk="c")


def test_chunks_get_ids_of_their_own_and_a_bare_finish_needs_none() -> None:
    first, second = (parse_entry(append_fields("s", "x", None, None)) for _ in range(2))
    assert isinstance(first, Append)
    assert isinstance(second, Append)
    assert first.chunk != second.chunk
    assert len(first.chunk or "") == 24
    assert parse_entry(finish_fields("s", None, None, None, 2)) == Finish("s", expect=2)
    assert parse_entry(finish_fields("s", "x", None, "mine", None)) == Finish("s", "x", chunk="mine")
    last = parse_entry(finish_fields("s", "x", None, None, None))
    assert isinstance(last, Finish)
    assert last.chunk


def test_items_may_be_written_in_three_ways() -> None:
    entry = parse_entry(update_fields("s", [ContextItem("a", "1"), {"id": "b"}, ("c", "3")], 4))
    assert entry == Update("s", (ContextItem("a", "1"), ContextItem("b"), ContextItem("c", "3")), 4)


def test_an_answer_collects_text_ids_and_warnings() -> None:
    builder = AnswerBuilder()
    for event in (
        Accepted("p", 1),
        Prefill(3, 2, 0),
        ErrorEvent("unknown_item", "no such item", "context", False, "7-0"),
        Token(0, "Hel", (5, 6)),
        Token(2, "lo", (7,)),
        Token(3, "!", ()),
        Done("stop", {"total_tokens": 9}, {"ttft_ms": 12}),
    ):
        builder.take(event)
    answer = builder.complete()
    assert (answer.text, answer.token_ids, answer.finish_reason) == ("Hello!", (5, 6, 7), "stop")
    assert (answer.usage, answer.timings) == ({"total_tokens": 9}, {"ttft_ms": 12})
    (warning,) = answer.warnings
    assert isinstance(warning, InvalidRequest)
    assert (warning.code, warning.ingress_id, warning.terminal) == (ErrorCode.UNKNOWN_ITEM, "7-0", False)
    assert str(answer) == "Hello!"


def test_a_terminal_error_is_raised_as_what_it_is() -> None:
    with pytest.raises(Overloaded, match="overloaded: no room"):
        AnswerBuilder().take(ErrorEvent("overloaded", "no room"))


def test_a_hole_in_the_answer_is_no_answer() -> None:
    builder = AnswerBuilder()
    builder.take(Token(0, "a", (1,)))
    with pytest.raises(ReplyGone, match="token 1 of the answer is missing"):
        builder.take(Token(2, "c", (3,)))


def test_an_unfinished_answer_cannot_be_had() -> None:
    with pytest.raises(ValueError, match="terminal"):
        AnswerBuilder().complete()


def test_new_ids_are_ids() -> None:
    assert len({composing.new_id() for _ in range(100)}) == 100
