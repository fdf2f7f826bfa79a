"""The state machine of one stream."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.entries import Append, Cancel, ContextItem, Entry, Finish, Open, StreamOptions, Update
from stream2llm.errors import ErrorCode
from stream2llm_pod.serving.streams import Phase, Stream, apply, expire, next_timeout_ms

ID = "s"


def new(**options: object) -> Stream:
    return Stream(StreamOptions(**options), opened_ms=1000, touched_ms=1000, vocabulary_tokens=100)  # type: ignore[arg-type]


def feed(stream: Stream, *entries: Entry, now_ms: int = 2000) -> list[ErrorCode | None]:
    refusals = [apply(stream, entry, now_ms, now_ms) for entry in entries]
    return [None if refusal is None else refusal.code for refusal in refusals]


def items(*parts: str | tuple[str, str]) -> tuple[ContextItem, ...]:
    return tuple(ContextItem(part) if isinstance(part, str) else ContextItem(*part) for part in parts)


def test_appends_join_with_the_separator_and_finish_generates() -> None:
    stream = new(separator="|")
    assert feed(stream, Append(ID, "a"), Append(ID, "b"), Finish(ID, "c")) == [None] * 3
    assert stream.context() == "a|b|c"
    assert stream.phase is Phase.GENERATING
    assert stream.finished_ms == 2000


def test_repeated_chunk_ids_change_nothing() -> None:
    stream = new()
    feed(stream, Append(ID, "a", chunk="1"), Append(ID, "other", chunk="1"), Finish(ID, "a", chunk="1"))
    assert stream.texts == ["a"]
    assert stream.generates()


def test_update_replaces_all_and_remembers_every_text() -> None:
    stream = new()
    assert (
        feed(
            stream,
            Update(ID, items(("a", "A"), ("b", "B"))),
            Update(ID, items("b")),
            Update(ID, items("a", "b", ("c", "C"))),
            Update(ID, items("b", ("a", "A2"))),
        )
        == [None] * 4
    )
    assert stream.texts == ["B", "A2"]


def test_append_after_update_is_an_item_named_by_its_chunk_id() -> None:
    stream = new()
    feed(stream, Update(ID, items(("a", "A"))), Append(ID, "N", chunk="n"))
    assert stream.texts == ["A", "N"]
    feed(stream, Update(ID, items("n", "a")))
    assert stream.texts == ["N", "A"]


def test_refused_update_changes_nothing() -> None:
    stream = new()
    feed(stream, Update(ID, items(("a", "A")), version=1))
    assert feed(stream, Update(ID, items(("x", "X"), "never"), version=2)) == [ErrorCode.UNKNOWN_ITEM]
    assert (stream.texts, stream.version, "x" in stream.known) == (["A"], 1, False)


def test_one_long_item_named_again_and_again_is_no_way_to_fill_the_memory() -> None:
    """Forty kilobytes of ids made a context of four gigabytes, which ended one pod after the other."""
    stream = new()
    feed(stream, Update(ID, items(("a", "x" * (1 << 20)))))
    assert feed(stream, Update(ID, items(*["a"] * 4096))) == [ErrorCode.STREAM_TOO_LARGE]
    assert len(stream.texts) == 1
    assert feed(stream, Update(ID, items(*["a"] * 15))) == [None]
    assert len(stream.context()) == 15 * (1 << 20) + 14 * 2


def test_an_update_does_not_copy_all_that_was_ever_sent() -> None:
    """Hundreds of thousands of chunks and as many small updates kept a pod from its heartbeats."""
    stream = new()
    feed(stream, Append(ID, "A", chunk="a"))
    known = stream.known
    feed(stream, Update(ID, items("a", ("b", "B"))))
    assert stream.known is known
    assert known == {"a": "A", "b": "B"}


def test_old_versions_change_nothing() -> None:
    stream = new()
    feed(stream, Update(ID, items(("a", "A")), version=2))
    assert feed(stream, Update(ID, items(("a", "old")), version=2), Update(ID, items(), version=1)) == [None, None]
    assert stream.texts == ["A"]
    feed(stream, Update(ID, items(("a", "unversioned"))), Update(ID, items(("a", "new")), version=3))
    assert stream.texts == ["new"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Append(ID, "a"), Append(ID, tokens=(1,))),
        (Append(ID, tokens=(1,)), Append(ID, "a")),
        (Append(ID, tokens=(1,)), Update(ID, items(("a", "A")))),
        (Update(ID, items(("a", "A"))), Append(ID, tokens=(1,))),
        (Append(ID, "a"), Finish(ID, tokens=(1,))),
    ],
)
def test_text_and_tokens_do_not_mix(first: Entry, second: Entry) -> None:
    stream = new()
    assert feed(stream, first, second) == [None, ErrorCode.MIXED_INPUT]
    assert stream.phase is Phase.OPEN
    assert stream.distinct_chunks <= 1


def test_token_ids_beyond_the_vocabulary_are_refused() -> None:
    stream = new()
    assert feed(stream, Append(ID, tokens=(99,)), Append(ID, tokens=(5, 100))) == [None, ErrorCode.MALFORMED]
    assert stream.tokens == [99]


def test_finish_waits_for_the_expected_chunks() -> None:
    stream = new()
    feed(stream, Append(ID, "a", chunk="a"), Finish(ID, expect=3))
    assert stream.phase is Phase.WAITING
    feed(stream, Append(ID, "a", chunk="a"), Append(ID, "b"))
    assert stream.phase is Phase.WAITING
    feed(stream, Finish(ID, expect=3), Finish(ID, "c", chunk="c"), now_ms=3000)
    assert stream.phase is Phase.GENERATING
    assert (stream.texts, stream.finished_ms) == (["a", "b", "c"], 3000)


def test_finish_with_enough_chunks_does_not_wait() -> None:
    stream = new()
    feed(stream, Append(ID, "a"), Append(ID, "b"), Finish(ID, "c", expect=3))
    assert stream.generates()


def test_after_the_finish_only_news_are_errors() -> None:
    stream = new()
    feed(stream, Append(ID, "a", chunk="a"), Update(ID, items("a"), version=5), Finish(ID))
    late = ErrorCode.CHUNK_AFTER_FINISH
    assert feed(
        stream,
        Append(ID, "a", chunk="a"),
        Append(ID, "b", chunk="b"),
        Append(ID, "b"),
        Update(ID, items("a"), version=5),
        Update(ID, items("a")),
        Finish(ID),
        Finish(ID, "x"),
        Open(ID, prompt="{context}"),
    ) == [None, late, late, None, late, None, None, None]
    assert stream.texts == ["a"]


def test_update_while_waiting_for_chunks_is_too_late() -> None:
    stream = new()
    assert feed(stream, Finish(ID, expect=1), Update(ID, ())) == [None, ErrorCode.CHUNK_AFTER_FINISH]


def test_cancel_ends_and_nothing_follows() -> None:
    stream = new()
    assert feed(stream, Cancel(ID), Append(ID, "a"), Cancel(ID), Finish(ID)) == [None] * 4
    assert stream.cancelled
    assert stream.ended()
    assert stream.texts == []


def test_idle_timeout_counts_from_the_last_touch() -> None:
    stream = new(idle_timeout_ms=500)
    assert next_timeout_ms(stream) == 1500
    feed(stream, Append(ID, "a"), now_ms=1400)
    assert expire(stream, 1899) is None
    timeout = expire(stream, 1900)
    assert timeout is not None
    assert (timeout.code, timeout.finish, stream.phase) == (ErrorCode.IDLE_TIMEOUT, False, Phase.ENDED)
    assert next_timeout_ms(stream) is None


def test_deadline_counts_from_the_open_and_holds_while_generating() -> None:
    stream = new(deadline_ms=5000)
    feed(stream, Finish(ID, "a"))
    assert next_timeout_ms(stream) == 6000
    timeout = expire(stream, 6000)
    assert timeout is not None
    assert timeout.code is ErrorCode.DEADLINE
    assert stream.ended()


def test_on_timeout_finish_answers_with_what_is_there() -> None:
    stream = new(deadline_ms=5000, idle_timeout_ms=10_000, on_timeout="finish")
    feed(stream, Append(ID, "a"), Finish(ID, expect=9))
    timeout = expire(stream, 6000)
    assert timeout is not None
    assert timeout.finish
    assert (stream.phase, stream.finished_ms) == (Phase.GENERATING, 6000)
    assert next_timeout_ms(stream) is None


def test_idle_timeout_does_not_end_an_answer() -> None:
    stream = new(idle_timeout_ms=10)
    feed(stream, Finish(ID, "a"))
    assert expire(stream, 10**9) is None


chunk_ids = st.sampled_from([None, "a", "b", "c"])
texts = st.text(max_size=3)
appends = st.one_of(
    st.builds(Append, st.just(ID), texts, st.none(), chunk_ids),
    st.builds(Append, st.just(ID), st.none(), st.tuples(st.integers(0, 120)), chunk_ids),
)
entries = st.one_of(
    appends,
    st.builds(
        Update,
        st.just(ID),
        st.lists(st.builds(ContextItem, st.sampled_from("abc"), st.none() | texts), max_size=3).map(tuple),
        st.none() | st.integers(0, 4),
    ),
    st.builds(Finish, st.just(ID), st.none() | texts, st.none(), chunk_ids, st.none() | st.integers(0, 4)),
    st.builds(Cancel, st.just(ID)),
)
ORDER = list(Phase)


@given(st.lists(entries, max_size=12))
def test_any_history_only_goes_forward_and_refusals_change_nothing(history: list[Entry]) -> None:
    stream = new()
    phases = [stream.phase]
    for entry in history:
        before = (list(stream.texts), list(stream.tokens), dict(stream.known), stream.distinct_chunks, stream.version)
        refusal = apply(stream, entry, 2000, 2000)
        after = (list(stream.texts), list(stream.tokens), dict(stream.known), stream.distinct_chunks, stream.version)
        if refusal is not None:
            assert before == after
        phases.append(stream.phase)
        if stream.generates() or stream.ended():
            assert apply(stream, Finish(ID), 2000, 2000) is None
        assert not (stream.texts and stream.tokens)
    assert all(ORDER.index(a) <= ORDER.index(b) for a, b in pairwise(phases))


@given(st.lists(appends.filter(lambda entry: entry.chunk is not None), max_size=8))
def test_sending_everything_twice_is_the_same(history: list[Entry]) -> None:
    once, twice = new(), new()
    for entry in history:
        feed(once, entry)
        feed(twice, entry, entry)
    assert (once.texts, once.tokens, once.distinct_chunks) == (twice.texts, twice.tokens, twice.distinct_chunks)
