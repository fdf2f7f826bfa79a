"""Spans by OpenTelemetry's own SDK, as a collector gets them."""

from __future__ import annotations

import pytest
from collecting import Collector

from stream2llm.tracing import recording
from stream2llm.tracing.arguments import TracingSettings
from stream2llm.tracing.identity import stream_trace
from stream2llm.tracing.recording import OTLPTracer
from stream2llm_bench.demo.ports import free_port

TRACE = stream_trace("n/p", "t", "s", "1000-0")
ABOUT = {"stream2llm.stream": "s"}


def test_spans_arrive_with_the_ids_that_follow_from_the_open() -> None:
    with Collector() as collector:
        tracer = OTLPTracer(TracingSettings(collector.endpoint), "ours", {"stream2llm.pool": "n/p"})
        tracer.record(TRACE, "root", 1000, 1005, ABOUT, is_root=True)
        tracer.record(TRACE, "child", 1005, 1010, ABOUT, error="lost")
        tracer.close()
        root, child = (collector.of_stream("s")[name] for name in ("root", "child"))
    assert (root.trace_id, root.span_id, root.parent_id) == (f"{TRACE.trace_id:032x}", f"{TRACE.root_id:016x}", "")
    assert (child.trace_id, child.parent_id) == (root.trace_id, root.span_id)
    assert child.span_id != root.span_id
    assert (root.service, root.start_ns, root.end_ns) == ("ours", 1000 * 10**6, 1005 * 10**6)
    assert (root.error, child.error) == ("", "lost")


def test_a_stream_that_is_not_sampled_is_not_sent() -> None:
    unsampled = stream_trace("n/p", "t", "s", "1-0", f"00-{'a' * 32}-{'b' * 16}-00")
    with Collector() as collector:
        tracer = OTLPTracer(TracingSettings(collector.endpoint), "ours", {})
        tracer.record(unsampled, "root", 0, 1, ABOUT, is_root=True)
        tracer.close()
        assert collector.spans == []


def test_a_time_that_a_producer_made_up_spoils_nothing() -> None:
    """An entry's id is its producer's to choose; what does not fit OTLP's nanoseconds would lose the whole batch."""
    with Collector() as collector:
        tracer = OTLPTracer(TracingSettings(collector.endpoint), "ours", {})
        tracer.record(TRACE, "root", 2**63, 1005, ABOUT, is_root=True)
        tracer.close()
        root = collector.of_stream("s")["root"]
    assert (root.start_ns, root.end_ns) == (1005 * 10**6, 1005 * 10**6)


def test_a_collector_that_is_away_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "LAST_SEND_S", 0.2)
    tracer = OTLPTracer(TracingSettings(f"http://127.0.0.1:{free_port()}/v1/traces"), "ours", {})
    for number in range(5_000):
        tracer.record(stream_trace("n/p", "t", f"s{number}", "1-0"), "root", 0, 1, ABOUT, is_root=True)
    tracer.close()
