"""Which trace a stream belongs to, and what of it is recorded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.tracing.identity import TraceParent, is_sampled, parse_traceparent, stream_trace

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("text", "is_sampled"),
    [(f"00-{TRACE}-{SPAN}-01", True), (f"00-{TRACE}-{SPAN}-00", False), (f"cc-{TRACE}-{SPAN}-03-more", True)],
)
def test_a_traceparent_is_read(text: str, is_sampled: bool) -> None:
    assert parse_traceparent(text) == TraceParent(int(TRACE, 16), int(SPAN, 16), is_sampled)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_one_that_cannot_be_read_is_as_none(text: str) -> None:
    assert parse_traceparent(text) is None
    assert stream_trace("n/p", "t", "s", "1-0", text) == stream_trace("n/p", "t", "s", "1-0")


@given(st.text(max_size=80))
def test_no_text_raises(text: str) -> None:
    parse_traceparent(text)


def test_router_and_pod_come_to_the_same_ids() -> None:
    trace = stream_trace("n/p", "t", "s", "1-0")
    assert trace == stream_trace("n/p", "t", "s", "1-0")
    others = [("m/p", "t", "s", "1-0"), ("n/p", "u", "s", "1-0"), ("n/p", "t", "r", "1-0"), ("n/p", "t", "s", "1-1")]
    assert len({trace.trace_id, *(stream_trace(*other).trace_id for other in others)}) == 5
    within = stream_trace("n/p", "t", "s", "1-0", f"00-{TRACE}-{SPAN}-01")
    assert (within.trace_id, within.root_id) == (int(TRACE, 16), trace.root_id)


def test_the_opener_decides_what_is_sampled_and_else_the_percentage() -> None:
    chosen, refused = (stream_trace("n/p", "t", "s", "1-0", f"00-{TRACE}-{SPAN}-0{flag}") for flag in (1, 0))
    assert (is_sampled(chosen, 0), is_sampled(refused, 100)) == (True, False)
    traces = [stream_trace("n/p", "t", f"s{number}", "1-0") for number in range(1000)]
    assert [sum(is_sampled(trace, percent) for trace in traces) for percent in (0, 100)] == [0, 1000]
    assert 200 < sum(is_sampled(trace, 25) for trace in traces) < 300
