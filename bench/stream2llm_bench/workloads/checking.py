"""Generated beside published: how far the quantiles of a workload are from the paper's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stream2llm_bench.workloads import anns, crawler
from stream2llm_bench.workloads.distributions import Floats
from stream2llm_bench.workloads.published import ANNS, CRAWLER, SHARES, Figure, Published
from stream2llm_bench.workloads.streams import Stream, common_prefix

PUBLISHED: Mapping[str, Published] = {crawler.NAME: CRAWLER, anns.NAME: ANNS}
TOLERANCE = 0.10


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of one distribution."""

    workload: str
    what: str
    figure: str
    generated: float
    published: float | None
    """None: not published; the generator assumes it."""

    @property
    def error(self) -> float | None:
        return None if self.published is None else self.generated / self.published - 1

    @property
    def passes(self) -> bool:
        return self.error is None or abs(self.error) <= TOLERANCE


def compare(workload: str, streams: Sequence[Stream]) -> list[Compared]:
    """All figures of the workload that the streams are of."""
    published = PUBLISHED[workload]
    gaps_ms = np.concatenate([np.diff([message.after_s for message in stream.messages]) for stream in streams]) * 1e3
    samples: tuple[tuple[str, Figure, Floats], ...] = (
        ("gap between chunks, ms", published.gap_ms, gaps_ms),
        ("chunks a query", published.chunks, np.array([float(len(stream.messages)) for stream in streams])),
        ("retrieval, ms", published.duration_ms, np.array([1e3 * stream.duration_s for stream in streams])),
        ("tokens a query", published.tokens, np.array([float(stream.final_tokens) for stream in streams])),
    )
    compared = []
    for what, figure, values in samples:
        for name, value in figure.published.items():
            compared.append(Compared(workload, what, name, _figure(values, name), value))
        for name in SHARES:
            if name not in figure.published:
                compared.append(Compared(workload, what, name, _figure(values, name), None))
    for what, values in _assumed(streams):
        for name in ("p5", "p50", "p95", "mean"):
            compared.append(Compared(workload, what, name, _figure(values, name), None))
    return compared


def _assumed(streams: Sequence[Stream]) -> Iterator[tuple[str, Floats]]:
    """Distributions of which nothing is published."""
    yield "tokens of the last message", np.array([float(_new_tokens(stream)) for stream in streams])
    if any(message.replaces for stream in streams for message in stream.messages):
        yield "share an update keeps", np.array([share for stream in streams for share in _kept(stream)])
        yield "tokens that updates replace, a query", np.array([float(_replaced(stream)) for stream in streams])


def _new_tokens(stream: Stream) -> int:
    last = stream.messages[-1]
    if not last.replaces:
        return last.tokens
    return last.tokens - common_prefix(stream.messages[-2].pieces, last.pieces)


def _kept(stream: Stream) -> Iterator[float]:
    for before, after in zip(stream.messages, stream.messages[1:], strict=False):
        yield common_prefix(before.pieces, after.pieces) / after.tokens


def _replaced(stream: Stream) -> int:
    pairs = zip(stream.messages, stream.messages[1:], strict=False)
    return sum(before.tokens - common_prefix(before.pieces, after.pieces) for before, after in pairs)


def _figure(values: Floats, name: str) -> float:
    if not len(values):
        return 0.0
    return float(values.mean() if name == "mean" else np.quantile(values, SHARES[name]))
