"""Reading and writing ingress entries: nothing a producer sends raises anything but EntryError."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stream2llm import settings
from stream2llm.entries import (
    KNOWN_FIELDS,
    MAX_JSON_DEPTH,
    MAX_JSON_INTEGER,
    MAX_TOKEN_ID,
    OPS,
    Append,
    Cancel,
    ContextItem,
    Entry,
    EntryError,
    EntryRules,
    Finish,
    Open,
    StreamOptions,
    Update,
    encode,
    encode_bytes,
    open_digest,
    parse_entry,
)
from stream2llm.errors import ErrorCode

C = ErrorCode
IDS = st.text(string.ascii_letters + string.digits + "._:-", min_size=1, max_size=128)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
PLAIN = TEXTS.map(lambda text: text.replace(settings.MARKER, ""))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_JSON_INTEGER, MAX_JSON_INTEGER) | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
TOKENS = st.lists(st.integers(0, MAX_TOKEN_ID), max_size=5).map(tuple)
OPTIONS = st.builds(
    StreamOptions,
    idle_timeout_ms=st.integers(1, settings.MAX_TIMEOUT_MS),
    deadline_ms=st.none() | st.integers(1, settings.MAX_TIMEOUT_MS),
    on_timeout=st.sampled_from(["fail", "finish"]),
    separator=TEXTS,
)


@st.composite
def opens(draw: st.DrawFn) -> Open:
    params, options = draw(st.dictionaries(TEXTS, JSON_VALUES, max_size=3)), draw(OPTIONS)
    content = settings.MARKER.join((draw(PLAIN), draw(PLAIN)))
    if content.count(settings.MARKER) != 1:
        content = settings.MARKER
    if draw(st.booleans()):
        messages = [{"role": "system", "content": draw(PLAIN)}, {"role": "user", "content": content, "name": "n"}]
        return Open(draw(IDS), messages, None, params, options, open_digest(messages, None, params, options))
    return Open(draw(IDS), None, content, params, options, open_digest(None, content, params, options))


def content(kind: Any, **more: Any) -> st.SearchStrategy[Any]:
    chunk = st.none() | NAMES
    return st.builds(kind, IDS, text=TEXTS, chunk=chunk, **more) | st.builds(
        kind, IDS, tokens=TOKENS, chunk=chunk, **more
    )


ENTRIES: st.SearchStrategy[Entry] = (
    opens()
    | content(Append)
    | content(Finish, expect=st.none() | st.integers(0, 2**53))
    | st.builds(Finish, IDS)
    | st.builds(
        Update,
        IDS,
        context=st.lists(st.builds(ContextItem, NAMES, st.none() | TEXTS), max_size=4).map(tuple),
        version=st.none() | st.integers(-(2**53), 2**53),
    )
    | st.builds(Cancel, IDS)
)


@given(ENTRIES)
def test_an_entry_is_what_it_was_after_encoding_and_parsing(entry: Entry) -> None:
    assert parse_entry(encode_bytes(entry)) == entry


ODD_JSON = st.sampled_from(
    [
        b"1e999", b"-1e999", b"NaN", b"[NaN]", b"Infinity", b"1" * 5000, b"9" * 30, b"true", b"null", b"{}", b"[]", b"",
        b'"\\ud800"', b'["\\udfff"]', b'{"\\ud800": 1}', b'{"id": "a", "id": "b"}',
        b"[" * 100_000, b"[" * 200 + b"]" * 200, b'{"a":' * 900 + b"1" + b"}" * 900, b"[" * 990 + b"]" * 990,
        b"\xff", b"\x00", b"\xed\xa0\x80", b'"\x00"', b"[true]", b"[-1]", b"[1.0]", b"[2147483648]", b'[{"id": true}]',
        b"\xef\xbb\xbf[]", b'{"marker": ""}', b'{"deadline_ms": -1}', b'{"deadline_ms": true}', b'{"on_timeout": []}',
    ]
)  # fmt: skip
VALUES = st.binary(max_size=40) | ODD_JSON | JSON_VALUES.map(lambda value: json.dumps(value).encode())
RAW = st.fixed_dictionaries(
    {},
    optional={
        b"stream": st.just(b"s1") | VALUES,
        b"op": st.sampled_from([op.encode() for op in OPS]) | VALUES,
        **{name.encode(): VALUES for name in KNOWN_FIELDS - {"stream", "op"}},
        b"\xffunknown": st.binary(max_size=5),
    },
)


@given(RAW)
@example({b"stream": b"s1", b"op": b"open", b"prompt": b"{context}", b"params": b"[" * 990 + b"]" * 990})
@example({b"stream": b"s1", b"op": b"append", b"tokens": b"[" * 990 + b"]" * 990})
@example({b"stream": b"s1", b"op": b"append", b"tokens": b'{"a":' * 990 + b"1" + b"}" * 990})
def test_parsing_raises_nothing_but_entry_errors(fields: dict[bytes, bytes]) -> None:
    error = None
    try:
        entry = parse_entry(fields)
    except EntryError as caught:
        error = caught
    if error is None:
        assert parse_entry(encode_bytes(entry)) == entry
        return
    assert error.code in ErrorCode
    error.message.encode("ascii")
    assert len(error.message) < 400
    assert error.stream in (None, fields.get(b"stream", b"").decode("latin-1"))


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


OPEN = {"op": "open", "prompt": "{context}"}
MIB = 1 << 20
TOO_MANY = json.dumps([{"id": "a"}] * 4097)


def item(text_bytes: int) -> str:
    return json.dumps([{"id": "a", "text": "x" * text_bytes}])


BAD: list[tuple[dict[str, Any], ErrorCode, str | None, str]] = [
    ({}, C.MALFORMED, "op", "missing"),
    ({"op": "erase"}, C.UNKNOWN_OP, "op", "'erase' is none of open, append, update, finish, cancel"),
    ({"op": b"\xff"}, C.MALFORMED, "op", "not UTF-8 (byte 0)"),
    ({"op": "append"}, C.MALFORMED, "text", "needs text or tokens"),
    ({"op": "append", "text": b"ab\xffc"}, C.MALFORMED, "text", "not UTF-8 (byte 2)"),
    ({"op": "append", "text": b"\xed\xa0\x80"}, C.MALFORMED, "text", "not UTF-8"),
    ({"op": "append", "text": "a", "tokens": "[1]"}, C.MIXED_INPUT, "tokens", "either text or tokens"),
    ({"op": "append", "text": "x" * 10 * MIB}, C.CHUNK_TOO_LARGE, "text", "10485760 bytes, limit 1048576"),
    ({"op": "append", "tokens": "[" + "1," * MIB + "1]"}, C.CHUNK_TOO_LARGE, "tokens", "limit 1048576"),
    ({"op": "append", "tokens": "7"}, C.MALFORMED, "tokens", "list of token ids, not 7"),
    ({"op": "append", "tokens": "[1, true]"}, C.MALFORMED, "tokens", "integer, not True"),
    ({"op": "append", "tokens": "[1, 2.0]"}, C.MALFORMED, "tokens", "integer, not 2.0"),
    ({"op": "append", "tokens": "[1, -1]"}, C.MALFORMED, "tokens", "between 0 and 2147483647, not -1"),
    ({"op": "append", "tokens": "[2147483648]"}, C.MALFORMED, "tokens", "not 2147483648"),
    ({"op": "append", "tokens": "[NaN]"}, C.MALFORMED, "tokens", "NaN is not JSON"),
    ({"op": "append", "tokens": "[1e999]"}, C.MALFORMED, "tokens", "range of a double"),
    ({"op": "append", "tokens": deep(100_000)}, C.MALFORMED, "tokens", f"deeper than {MAX_JSON_DEPTH} levels"),
    ({"op": "append", "tokens": deep(70)}, C.MALFORMED, "tokens", f"deeper than {MAX_JSON_DEPTH} levels"),
    ({"op": "append", "tokens": "[1"}, C.MALFORMED, "tokens", "not JSON"),
    ({"op": "append", "text": "a", "chunk": ""}, C.MALFORMED, "chunk", "1 to 128 characters long, not 0"),
    ({"op": "append", "text": "a", "chunk": "c" * 129}, C.MALFORMED, "chunk", "not 129"),
    ({"op": "append", "text": "a", "messages": "x" * 17 * MIB}, C.STREAM_TOO_LARGE, None, "limit 16777216"),
    ({"op": "finish", "expect": "-1"}, C.MALFORMED, "expect", "between 0"),
    ({"op": "finish", "expect": "1.5"}, C.MALFORMED, "expect", "integer, not '1.5'"),
    ({"op": "finish", "expect": "٣"}, C.MALFORMED, "expect", "integer"),
    ({"op": "finish", "expect": "9" * 5000}, C.MALFORMED, "expect", "integer"),
    ({"op": "update"}, C.MALFORMED, "context", "missing"),
    ({"op": "update", "context": "{}"}, C.MALFORMED, "context", "list of items"),
    ({"op": "update", "context": "[1]"}, C.MALFORMED, "context", "must be an object, not 1"),
    ({"op": "update", "context": '[{"text": "a"}]'}, C.MALFORMED, "context", "id None"),
    ({"op": "update", "context": '[{"id": true}]'}, C.MALFORMED, "context", "id True"),
    ({"op": "update", "context": '[{"id": "a", "text": 1}]'}, C.MALFORMED, "context", "must be a text"),
    ({"op": "update", "context": '[{"id": "a", "id": "b"}]'}, C.MALFORMED, "context", "the key 'id' comes twice"),
    ({"op": "update", "context": '[{"id": "\\ud800"}]'}, C.MALFORMED, "context", "surrogate"),
    ({"op": "update", "context": TOO_MANY}, C.TOO_MANY_ITEMS, "context", "4097 items, limit 4096"),
    ({"op": "update", "context": item(MIB + 1)}, C.CHUNK_TOO_LARGE, "context", "1048577"),
    ({"op": "update", "context": item(17 * MIB)}, C.STREAM_TOO_LARGE, "context", "16777216"),
    ({"op": "update", "context": "[]", "version": "one"}, C.MALFORMED, "version", "integer, not 'one'"),
    ({"op": "update", "context": "[]", "version": "9007199254740993"}, C.MALFORMED, "version", "9007199254740992"),
    ({"op": "open"}, C.MALFORMED, "messages", "either messages or prompt"),
    ({**OPEN, "messages": "[]"}, C.MALFORMED, "messages", "either messages or prompt"),
    ({"op": "open", "messages": "[]"}, C.MALFORMED, "messages", "at least one message"),
    ({"op": "open", "messages": "3"}, C.MALFORMED, "messages", "not 3"),
    ({"op": "open", "messages": '[{"content": "{context}"}]'}, C.MALFORMED, "messages", "with a role"),
    ({"op": "open", "messages": '[{"role": "u", "content": ["{context}"]}]'}, C.MALFORMED, "messages", "be a text"),
    ({"op": "open", "prompt": "no marker"}, C.MARKER, "prompt", "exactly once, found 0 times"),
    ({"op": "open", "prompt": "{context}{context}"}, C.MARKER, "prompt", "found 2 times"),
    ({"op": "open", "messages": '[{"role": "a", "content": "{context}"}, {"role": "b", "content": "{context}"}]'},
     C.MARKER, "messages", "found 2 times"),
    ({"op": "open", "prompt": "x" * (MIB + 1)}, C.CHUNK_TOO_LARGE, "prompt", "1048577 bytes, limit 1048576"),
    ({**OPEN, "params": "[]"}, C.INVALID_PARAMS, "params", "must be an object, not []"),
    ({**OPEN, "params": '{"seed": 9223372036854775808}'}, C.MALFORMED, "params", "64 bits"),
    ({**OPEN, "params": '{"seed": ' + "1" * 5000 + "}"}, C.MALFORMED, "params", "not JSON"),
    ({**OPEN, "params": deep(66)}, C.MALFORMED, "params", "deeper than 64 levels"),
    ({**OPEN, "options": "[]"}, C.INVALID_OPTIONS, "options", "must be an object"),
    ({**OPEN, "options": '{"dead_line": 1}'}, C.INVALID_OPTIONS, "options", "'dead_line'; known are idle_timeout_ms"),
    ({**OPEN, "options": '{"deadline_ms": -5}'}, C.INVALID_OPTIONS, "options.deadline_ms", "1 and 86400000, not -5"),
    ({**OPEN, "options": '{"deadline_ms": true}'}, C.INVALID_OPTIONS, "options.deadline_ms", "integer, not True"),
    ({**OPEN, "options": '{"idle_timeout_ms": 0}'}, C.INVALID_OPTIONS, "options.idle_timeout_ms", "not 0"),
    ({**OPEN, "options": '{"idle_timeout_ms": null}'}, C.INVALID_OPTIONS, "options.idle_timeout_ms", "not None"),
    ({**OPEN, "options": '{"on_timeout": ["fail"]}'}, C.INVALID_OPTIONS, "options.on_timeout", "fail or finish"),
    ({**OPEN, "options": '{"separator": 1}'}, C.INVALID_OPTIONS, "options.separator", "not 1"),
    ({**OPEN, "options": '{"marker": ""}'}, C.INVALID_OPTIONS, "options.marker", "1 to 128 characters of text, not ''"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "code", "field", "words"), BAD, ids=[f"{i}-{row[1]}-{row[2]}" for i, row in enumerate(BAD)]
)
def test_bad_entries_are_refused_with_code_field_and_limit(
    fields: dict[str, Any], code: ErrorCode, field: str | None, words: str
) -> None:
    raw = {name.encode(): value if isinstance(value, bytes) else value.encode() for name, value in fields.items()}
    with pytest.raises(EntryError) as caught:
        parse_entry({b"stream": b"s1", **raw})
    error = caught.value
    assert (error.code, error.field, error.stream) == (code, field, "s1")
    assert words in error.message
    assert len(error.message) < 300


@pytest.mark.parametrize(
    "stream", [None, b"", b"a b", b"s\x00", b"s\xc3\xa9", b"\xff", b"s\n", b"x" * 129, b"x" * 10**6]
)
def test_an_unreadable_stream_id_is_told_apart(stream: bytes | None) -> None:
    fields = {b"op": b"finish"} if stream is None else {b"op": b"finish", b"stream": stream}
    with pytest.raises(EntryError) as caught:
        parse_entry(fields)
    assert (caught.value.code, caught.value.field, caught.value.stream) == (ErrorCode.MALFORMED, "stream", None)


def test_unknown_fields_and_null_options_are_ignored() -> None:
    entry = parse_entry({b"stream": b"s", b"op": b"cancel", b"colour": b"\xff"})
    assert entry == Cancel("s")
    opened = parse_entry(
        {b"stream": b"s", b"op": b"open", b"prompt": b"{context}", b"params": b"null", b"options": b"null"}
    )
    assert isinstance(opened, Open)
    assert (opened.params, opened.options) == ({}, StreamOptions())


def test_limits_are_inclusive() -> None:
    longest = b"x" * settings.MAX_CHUNK_BYTES
    assert parse_entry({b"stream": b"x" * 128, b"op": b"append", b"text": longest, b"chunk": b"c" * 128})
    items = json.dumps([{"id": str(i)} for i in range(settings.MAX_CONTEXT_ITEMS)]).encode()
    update = parse_entry({b"stream": b"s", b"op": b"update", b"context": items, b"version": b"-9007199254740992"})
    assert isinstance(update, Update)
    assert len(update.context) == settings.MAX_CONTEXT_ITEMS
    nested: Any = 1
    for _ in range(MAX_JSON_DEPTH - 1):
        nested = [nested]
    opening = {**OPEN, "stream": "s", "params": json.dumps({"a": nested})}
    assert parse_entry({name.encode(): value.encode() for name, value in opening.items()})


def test_a_pool_may_take_shorter_chunks_only() -> None:
    rules = EntryRules(max_chunk_bytes=8)
    for raw in (
        {b"op": b"append", b"text": b"123456789"},
        {b"op": b"finish", b"tokens": b"[1,2,3,4,5]"},
        {b"op": b"update", b"context": json.dumps([{"id": "a", "text": "123456789"}]).encode()},
    ):
        assert parse_entry({b"stream": b"s", **raw})
        with pytest.raises(EntryError, match=r"limit 8$") as caught:
            parse_entry({b"stream": b"s", **raw}, rules)
        assert caught.value.code == ErrorCode.CHUNK_TOO_LARGE
    assert parse_entry({b"stream": b"s", b"op": b"append", b"text": b"12345678"}, rules) == Append("s", "12345678")


def test_a_pool_may_have_its_own_idle_timeout_where_an_open_names_none() -> None:
    rules = EntryRules(idle_timeout_ms=5_000)

    def timeout(**options: int) -> int:
        raw = {b"stream": b"s", b"op": b"open", b"prompt": b"{context}", b"options": json.dumps(options).encode()}
        opened = parse_entry(raw, rules)
        assert isinstance(opened, Open)
        return opened.options.idle_timeout_ms

    assert timeout() == timeout(deadline_ms=9) == 5_000
    assert timeout(idle_timeout_ms=7_000) == 7_000
    bare = parse_entry({b"stream": b"s", b"op": b"open", b"prompt": b"{context}"}, rules)
    assert isinstance(bare, Open)
    assert bare.options.idle_timeout_ms == 5_000


def test_the_marker_may_be_chosen() -> None:
    opened = parse_entry(
        {b"stream": b"s", b"op": b"open", b"prompt": b"{context} <<here>>", b"options": b'{"marker": "<<here>>"}'}
    )
    assert isinstance(opened, Open)
    assert opened.options.marker == "<<here>>"


def test_digests_tell_opens_apart_and_ignore_spelling() -> None:
    def digest(**fields: str) -> str:
        raw = {"stream": "s", "op": "open", **fields}
        opened = parse_entry({name.encode(): value.encode() for name, value in raw.items()})
        assert isinstance(opened, Open)
        return opened.digest

    base = digest(prompt="{context}", params='{"seed": 1, "top_p": 0.5}')
    assert base == digest(prompt="{context}", params='{"top_p":0.5,"seed":1}', options='{"idle_timeout_ms": 120000}')
    others = {
        digest(prompt="{context}"),
        digest(prompt="{context}", params='{"seed": 2, "top_p": 0.5}'),
        digest(prompt="{context}", params='{"seed": 1, "top_p": 0.5}', options='{"deadline_ms": 5}'),
        digest(prompt="{context}.", params='{"seed": 1, "top_p": 0.5}'),
        digest(messages='[{"role": "user", "content": "{context}"}]', params='{"seed": 1, "top_p": 0.5}'),
    }
    assert len(others | {base}) == 6
    assert len(base) == 64


def test_encoding_leaves_defaults_out() -> None:
    assert encode(Open("s", prompt="{context}")) == {"stream": "s", "op": "open", "prompt": "{context}"}
    assert encode(Finish("s")) == {"stream": "s", "op": "finish"}
    assert encode(Update("s", (ContextItem("a", "é"), ContextItem("b")), 3)) == {
        "stream": "s",
        "op": "update",
        "context": '[{"id":"a","text":"é"},{"id":"b"}]',
        "version": "3",
    }
