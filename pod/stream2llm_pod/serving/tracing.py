"""A pod's part of a stream's trace: `pod.intake`, `pod.prefill`, `pod.first_token`. All times are of Redis, in ms."""

from __future__ import annotations

from dataclasses import dataclass, field

from stream2llm.tracing.identity import StreamTrace, stream_trace
from stream2llm.tracing.recording import Tracer, Value
from stream2llm_pod.serving.intake import Adoption


@dataclass(frozen=True, slots=True)
class PodTracing:
    """Where the pod's spans go, and what each of them says of the pod."""

    tracer: Tracer
    pool: str
    pod: str

    def of_stream(self, tenant: str, stream: str, adoption: Adoption, traceparent: str, now_ms: int) -> StreamSpans:
        """The spans of a stream that the pod takes now."""
        trace = stream_trace(self.pool, tenant, stream, adoption.open_id, traceparent)
        attributes: dict[str, Value] = {
            "stream2llm.pool": self.pool,
            "stream2llm.pod": self.pod,
            "stream2llm.tenant": tenant,
            "stream2llm.stream": stream,
            "stream2llm.attempt": adoption.attempt,
        }
        spans = StreamSpans(self.tracer, trace, attributes, now_ms)
        # How long a later pod took to hear of the stream nobody knows: its predecessor's end is not written down.
        spans.record("pod.intake", adoption.opened_ms if adoption.attempt == 1 else now_ms, now_ms)
        return spans


@dataclass(slots=True)
class StreamSpans:
    """Records each span once, as soon as it is over."""

    _tracer: Tracer
    _trace: StreamTrace
    _attributes: dict[str, Value]
    _taken_ms: int
    _is_over: bool = field(default=False)

    def first_token(self, finished_ms: int | None, now_ms: int, prompt_tokens: int) -> None:
        """The prefill until the context was finished, and the time from then to the first token."""
        self._until_finish(finished_ms, now_ms, "", {"stream2llm.prompt_tokens": prompt_tokens})

    def ended(self, finished_ms: int | None, now_ms: int, error: str) -> None:
        """The stream is over; without a first token that is what became of its prefill."""
        self._until_finish(finished_ms, now_ms, error, {})

    def _until_finish(self, finished_ms: int | None, now_ms: int, error: str, more: dict[str, Value]) -> None:
        if self._is_over:
            return None
        self._is_over = True
        if finished_ms is None:
            return self.record("pod.prefill", self._taken_ms, now_ms, error, more)
        # A stream that was held may be finished before the pod takes it.
        self.record("pod.prefill", self._taken_ms, max(finished_ms, self._taken_ms), "", more)
        self.record("pod.first_token", finished_ms, now_ms, error, more)
        return None

    def record(
        self, name: str, start_ms: int, end_ms: int, error: str = "", more: dict[str, Value] | None = None
    ) -> None:
        self._tracer.record(self._trace, name, start_ms, end_ms, {**self._attributes, **(more or {})}, error=error)
