"""The router's part of a stream's trace: from the open's arrival in Redis until it is where it belongs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stream2llm.keys import PoolKeys
from stream2llm.tracing.identity import stream_trace
from stream2llm.tracing.recording import Tracer
from stream2llm_router.judging import Verdict

Opened = tuple[bytes, Mapping[bytes, bytes], Verdict]
"""Ingress id, fields and verdict of an entry."""


def record_opens(tracer: Tracer, keys: PoolKeys, tenant: str, entries: Iterable[Opened], now_ms: int) -> None:
    """`router.forward` of each valid open, the root of its stream's trace, whose batch has just been forwarded."""
    for identifier, fields, verdict in entries:
        if verdict.op != "open" or verdict.code:
            continue
        open_id = identifier.decode()
        parent = fields.get(b"traceparent", b"").decode("ascii", "replace")
        trace = stream_trace(keys.pool, tenant, verdict.stream, open_id, parent)
        attributes = {"stream2llm.pool": keys.pool, "stream2llm.tenant": tenant, "stream2llm.stream": verdict.stream}
        tracer.record(trace, "router.forward", int(open_id.split("-")[0]), now_ms, attributes, is_root=True)
