"""Spans of streams, recorded once they are over and sent by a thread of OpenTelemetry's own.

Nothing here waits: with a collector that is away, or too slow, spans are dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from stream2llm.tracing.arguments import TracingSettings
from stream2llm.tracing.identity import StreamTrace, is_sampled

if TYPE_CHECKING:
    from opentelemetry.context import Context

SEND_TIMEOUT_S = 5.0
LAST_SEND_S = 5.0
"""How long the end of a process waits for its last spans."""
INSTRUMENTATION = "stream2llm"

Value = str | int | float | bool


class Tracer(Protocol):
    """Where spans go."""

    def record(
        self,
        trace: StreamTrace,
        name: str,
        start_ms: int,
        end_ms: int,
        attributes: Mapping[str, Value],
        *,
        error: str = "",
        is_root: bool = False,
    ) -> None:
        """One span, between two times of Redis. error: the code of what it failed with, if it did."""

    def close(self) -> None:
        """Send what is left, in bounded time."""


class OTLPTracer:
    """Sends spans by OTLP over HTTP. service: which of our programs this is; `resource` says more of it."""

    def __init__(self, settings: TracingSettings, service: str, resource: Mapping[str, str]) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        self._percent = settings.percent
        self._next_root: StreamTrace | None = None
        recording = self

        class Ids(RandomIdGenerator):
            """A stream's root has the ids that follow from its open."""

            def generate_trace_id(self) -> int:
                root = recording._next_root
                return super().generate_trace_id() if root is None else root.trace_id

            def generate_span_id(self) -> int:
                root = recording._next_root
                return super().generate_span_id() if root is None else root.root_id

        # What is not sampled never gets there.
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create({"service.name": service, **resource}),
            id_generator=Ids(),
            shutdown_on_exit=False,
        )
        exporter = OTLPSpanExporter(endpoint=settings.endpoint, timeout=SEND_TIMEOUT_S)
        self._processor = BatchSpanProcessor(exporter)
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer(INSTRUMENTATION)

    def record(
        self,
        trace: StreamTrace,
        name: str,
        start_ms: int,
        end_ms: int,
        attributes: Mapping[str, Value],
        *,
        error: str = "",
        is_root: bool = False,
    ) -> None:
        """See Tracer. One thread at a time."""
        if not is_sampled(trace, self._percent):
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode

        self._next_root = trace if is_root else None
        try:
            span = self._tracer.start_span(
                name,
                context=_parent(trace, is_root),
                kind=SpanKind.CONSUMER if is_root else SpanKind.INTERNAL,
                attributes=attributes,
                # Ids of entries are times that a producer may make up.
                start_time=min(start_ms, end_ms) * 1_000_000,
            )
        finally:
            self._next_root = None
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(end_time=end_ms * 1_000_000)

    def close(self) -> None:
        """A collector that does not answer would hold the end of the process up for half a minute."""
        closing = threading.Thread(target=self._processor.shutdown, name="last spans", daemon=True)
        closing.start()
        closing.join(LAST_SEND_S)


def _parent(trace: StreamTrace, is_root: bool) -> Context:
    """The context of a span: the opener's span of the root, the root of all others."""
    from opentelemetry import trace as api
    from opentelemetry.context import Context

    if not is_root:
        span_id = trace.root_id
    elif trace.parent is not None:
        span_id = trace.parent.span_id
    else:
        return Context()
    remote = api.SpanContext(
        trace.trace_id, span_id, is_remote=True, trace_flags=api.TraceFlags(api.TraceFlags.SAMPLED)
    )
    return api.set_span_in_context(api.NonRecordingSpan(remote), Context())
