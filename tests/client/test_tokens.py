"""HTTP tokens: what is stored of them, and what a file may hold."""

from __future__ import annotations

import hashlib

import pytest

from stream2llm.tokens import new_token, parse_record, parse_tokens_file, record_of, token_digest


def test_a_token_is_long_unique_and_stored_as_its_digest() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    token = tokens.pop()
    assert token.startswith("s2l_")
    assert len(token) == 4 + 43
    record = record_of(token, "acme", now_ms=5)
    assert record.digest == token_digest(token) == hashlib.sha256(token.encode()).hexdigest()
    assert token not in record.value() + record.line() + record.name
    assert parse_record(record.digest, record.value().encode()) == record
    assert parse_tokens_file([record.line()]) == {record.digest: "acme"}


def test_any_text_has_a_digest() -> None:
    assert len(token_digest("\udc80 \x00")) == 64


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"tenant": "A"}', b'{"tenant": 5}', b"\xff"])
def test_a_record_that_is_none_names_the_token(value: bytes) -> None:
    with pytest.raises(ValueError, match="the record of token aaaaaaaaaaaa cannot be read"):
        parse_record("a" * 64, value)


def test_a_file_may_have_comments_and_errors_name_the_line() -> None:
    digest = "0" * 64
    assert parse_tokens_file(["# ours", "", f" acme:{digest} "]) == {digest: "acme"}
    for bad in ("acme", f"acme:{'0' * 63}", f"acme:{'A' * 64}", "acme:s2l_secret"):
        with pytest.raises(ValueError, match="line 2 is not TENANT:SHA256"):
            parse_tokens_file(["", bad])
    with pytest.raises(ValueError, match="tenant 'A' must be"):
        parse_tokens_file([f"A:{digest}"])
