"""The verdict on single entries: hypothesis finds nothing that raises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.entries import KNOWN_FIELDS
from stream2llm_router import judging
from stream2llm_router.judging import Verdict, judge

NAMES = st.sampled_from(sorted(name.encode() for name in KNOWN_FIELDS)) | st.binary(max_size=8)
VALUES = st.binary(max_size=40) | st.sampled_from(
    (b"open", b"append", b"update", b"finish", b"cancel", b"s1", b"{context}", b"[]", b"{}", b"[" * 5_000, b"1e999")
)


@given(st.dictionaries(NAMES, VALUES, max_size=12))
def test_any_entry_gets_a_verdict_that_can_be_told(fields: dict[bytes, bytes]) -> None:
    verdict = judge(fields)
    assert verdict.op in ("", "open", "append", "update", "finish", "cancel")
    assert verdict.code or verdict.op
    assert verdict.stream or verdict.code
    assert len(verdict.message.encode()) < 1_000


def test_an_open_brings_digest_and_model() -> None:
    verdict = judge({b"stream": b"s", b"op": b"open", b"prompt": b"{context}", b"params": b'{"model": "m"}'})
    assert (verdict.op, verdict.stream, verdict.model, verdict.code) == ("open", "s", "m", "")
    assert len(verdict.digest) == 64
    assert judge({b"stream": b"s", b"op": b"open", b"prompt": b"{context}", b"params": b'{"model": 3}'}).model == ""


def test_a_refused_open_is_still_known_as_one() -> None:
    verdict = judge({b"stream": b"s", b"op": b"open", b"prompt": b"no marker"})
    assert (verdict.op, verdict.stream, verdict.code, verdict.field) == ("open", "s", "marker", "prompt")
    assert judge({b"stream": b"s", b"op": b"shout"}) == Verdict(
        "", "s", code="unknown_op", message=judge({b"stream": b"s", b"op": b"shout"}).message, field="op"
    )


def test_a_mistake_in_judging_costs_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fields: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(judging, "parse_entry", broken)
    assert judge({b"stream": b"s", b"op": b"append"}).code == "internal"
    assert judge({b"stream": b"s", b"op": b"append"}).stream == "s"
    assert judge({b"stream": b"\xff", b"op": b"open"}).stream == ""
