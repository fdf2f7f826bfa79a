"""`bench tracing`: a router's backlog forwarded without traces and with them, in interleaved runs.

The time with traces is until the last span has been sent. A pod records three spans a stream, beside an answer that
takes it a second or more; what a span costs is told, so that this can be worked out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry

from stream2llm.connecting import connect
from stream2llm.entries import Append, Finish, Open, encode
from stream2llm.keys import DEFAULT_TENANT, PoolKeys
from stream2llm.tracing.arguments import TracingSettings
from stream2llm.tracing.identity import stream_trace
from stream2llm.tracing.recording import OTLPTracer
from stream2llm_bench.comparing import Ratio, ratio_of_pairs
from stream2llm_bench.demo.children import Children
from stream2llm_bench.demo.ports import free_port
from stream2llm_bench.demo.valkey import start_valkey
from stream2llm_bench.reporting import Report, Table
from stream2llm_bench.route.throughput import fill, register_pod
from stream2llm_router.forwarding import Forwarder
from stream2llm_router.metrics import RouterMetrics

POOL = "bench/tracing"
CHUNK_BYTES = 1_024
SPANS = 2_000
"""Fewer than a queue of OpenTelemetry holds, so that none is dropped."""


@dataclass(slots=True)
class Measured:
    """Seconds for each backlog, one value per run, and microseconds for a span."""

    plain_s: list[float] = field(default_factory=list)
    traced_s: list[float] = field(default_factory=list)
    span_us: list[float] = field(default_factory=list)


class TracingBench:
    name = "tracing"
    help = "a router's backlog with traces beside the same without"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--runs", type=int, default=7, help="interleaved runs (default 7)")
        parser.add_argument("--streams", type=int, default=1_000, help="streams in each backlog (default 1000)")
        parser.add_argument("--chunks", type=int, default=8, help="chunks of 1 KB in each stream (default 8)")

    def run(self, args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
        for name, most in (("runs", 1_000), ("streams", SPANS), ("chunks", 1_000)):
            if not 1 <= getattr(args, name) <= most:
                raise ValueError(f"--{name} must be from 1 to {most}, not {getattr(args, name)}")
        measured = Measured()
        with tempfile.TemporaryDirectory() as folder, Children(Path(folder)) as children:
            url, port = start_valkey(children, Path(folder)), free_port()
            children.start("collector", [sys.executable, "-m", "stream2llm_bench.tracing.collector", str(port)])
            settings = TracingSettings(f"http://127.0.0.1:{port}/v1/traces")
            for run in range(args.runs + 1):
                progress(f"run {run} of {args.runs}" if run else "warming up")
                plain_s = forward_s(url, f"{run}-plain", args, None)
                traced_s = forward_s(url, f"{run}-traced", args, settings)
                if run:
                    measured.plain_s.append(plain_s)
                    measured.traced_s.append(traced_s)
                    measured.span_us.append(span_us(settings))
                children.check()
        return report(measured, args)


def forward_s(url: str, run: str, args: argparse.Namespace, tracing: TracingSettings | None) -> float:
    """Seconds until all entries of the streams are forwarded, and all spans sent."""
    client, keys = connect(url), PoolKeys(POOL)
    client.flushall()
    register_pod(client, keys, run)
    entries = []
    for stream in (f"run{run}-{number}" for number in range(args.streams)):
        entries.append(encode(Open(stream, prompt="{context}")))
        entries += [encode(Append(stream, text="." * CHUNK_BYTES))] * args.chunks
        entries.append(encode(Finish(stream)))
    fill(client, keys.ingress(DEFAULT_TENANT), entries)
    tracer = None if tracing is None else OTLPTracer(tracing, "bench", {})
    forwarder = Forwarder(client, keys, RouterMetrics(keys.pool, CollectorRegistry()), block_ms=1, tracer=tracer)
    started_s, moved = time.perf_counter(), 0
    while moved < len(entries):
        moved += forwarder.turn()
    if tracer is not None:
        tracer.close()
    elapsed_s = time.perf_counter() - started_s
    forwarder.leases.release_all()
    return elapsed_s


def span_us(settings: TracingSettings) -> float:
    """Microseconds that recording one span takes the thread that records it."""
    tracer = OTLPTracer(settings, "bench", {})
    about = {"stream2llm.pool": POOL, "stream2llm.tenant": DEFAULT_TENANT, "stream2llm.stream": "s"}
    started_s = time.perf_counter()
    for number in range(SPANS):
        trace = stream_trace(POOL, DEFAULT_TENANT, "s", f"{number}-0")
        tracer.record(trace, "span", number, number + 1, about)
    elapsed_s = time.perf_counter() - started_s
    tracer.close()
    return elapsed_s / SPANS * 1e6


def report(measured: Measured, args: argparse.Namespace) -> Report:
    ratio = ratio_of_pairs(measured.plain_s, measured.traced_s)
    entries = args.streams * (args.chunks + 2)
    row = (
        "entries a second",
        f"{entries / statistics.median(measured.plain_s):.0f}",
        f"{entries / statistics.median(measured.traced_s):.0f}",
        str(ratio),
    )
    span = statistics.median(measured.span_us)
    return Report(
        "tracing",
        {
            "throughput_ratio": round(ratio.median, 3),
            "throughput_ratio_spread": [round(bound, 3) for bound in ratio.spread],
            "span_us": round(span, 1),
            "runs": args.runs,
        },
        [
            Table(
                f"{args.runs} interleaved runs: {args.streams} streams of {args.chunks} chunks, all of them traced",
                ("", "without traces", "with traces", "with ÷ without (lowest to highest)"),
                [row],
            )
        ],
        lambda path: draw(measured.plain_s, measured.traced_s, ratio, path),
        [f"recording a span: {span:.0f} µs"],
    )


def draw(plain_s: Sequence[float], traced_s: Sequence[float], ratio: Ratio, path: Path) -> None:
    """Seconds for the backlog, run by run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3))
    runs = range(1, len(plain_s) + 1)
    axes.plot(runs, plain_s, "o-", label="without traces")
    axes.plot(runs, traced_s, "o-", label="with traces")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("run")
    axes.set_ylabel("seconds for the backlog")
    axes.set_title(f"throughput with ÷ without: {ratio}", fontsize="medium")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


BENCH = TracingBench()
