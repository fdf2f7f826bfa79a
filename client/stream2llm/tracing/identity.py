"""Which trace a stream belongs to. Pure.

All that is known of a stream's trace follows from its open: router and pod, and whoever takes over from one that is
killed, come to the same ids and the same choice of what is sampled without telling one another.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_RATIO_BITS = 56
"""The last bits of a trace id are random by W3C's Trace Context, level 2: a ratio is told by them."""


@dataclass(frozen=True, slots=True)
class TraceParent:
    """A span of somebody else's that the stream was opened in."""

    trace_id: int
    span_id: int
    is_sampled: bool


@dataclass(frozen=True, slots=True)
class StreamTrace:
    """Ids of 128 and 64 bits. root_id: the span that all others of the stream are children of."""

    trace_id: int
    root_id: int
    parent: TraceParent | None = None


def parse_traceparent(text: str) -> TraceParent | None:
    """A `traceparent` of W3C's Trace Context; None for one that cannot be read, which is as none at all."""
    found = _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    # Versions to come may add fields; version 0 may not, and ff is none.
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceParent(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & 1))


def stream_trace(pool: str, tenant: str, stream: str, open_id: str, traceparent: str = "") -> StreamTrace:
    """The trace of the stream whose open has the ingress id `open_id`."""
    parent = parse_traceparent(traceparent) if traceparent else None
    digest = hashlib.blake2b(f"{pool} {tenant} {stream} {open_id}".encode(), digest_size=24).digest()
    own, root_id = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:], "big")
    return StreamTrace(own if parent is None else parent.trace_id, root_id, parent)


def is_sampled(trace: StreamTrace, percent: float) -> bool:
    """Whether spans of this stream are recorded: as its opener chose, else so many of a hundred."""
    if trace.parent is not None:
        return trace.parent.is_sampled
    return trace.trace_id % (1 << _RATIO_BITS) < percent / 100 * (1 << _RATIO_BITS)
