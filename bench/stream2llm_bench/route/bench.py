"""`bench route`: interleaved runs with and without the router in between."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stream2llm.connecting import connect
from stream2llm.entries import Cancel
from stream2llm.entries import encode as encode_entry
from stream2llm.keys import DEFAULT_TENANT, PoolKeys
from stream2llm_bench.comparing import Ratio, ratio_of_pairs
from stream2llm_bench.demo.children import Children
from stream2llm_bench.demo.ports import free_port
from stream2llm_bench.demo.valkey import start_valkey
from stream2llm_bench.failing import Unavailable
from stream2llm_bench.reporting import Report, Table
from stream2llm_bench.route.roles import BARE_KEY, POD, open_fields, stream_names
from stream2llm_bench.route.throughput import grouped_s, routed_s, stream_bytes

POOL = "bench/route"
PROCESS_TIMEOUT_S = 120.0
SAMPLE_S = 0.05
MEMORY_STREAMS, MEMORY_ENTRIES = 500, 4


@dataclass(slots=True)
class Measured:
    """Microseconds for the hops, seconds for the backlogs: one value per run each."""

    bare_p50_us: list[float] = field(default_factory=list)
    bare_p99_us: list[float] = field(default_factory=list)
    routed_p50_us: list[float] = field(default_factory=list)
    routed_p99_us: list[float] = field(default_factory=list)
    grouped_s: list[float] = field(default_factory=list)
    routed_s: list[float] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)
    stream_bytes: float = 0.0


class RouteBench:
    name = "route"
    help = "from XADD to a pod's intake through the router, beside a bare hop; and a backlog, beside a consumer group"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--runs", type=int, default=5, help="interleaved runs (default 5)")
        parser.add_argument("--rate", type=float, default=500.0, help="entries a second in the hops (default 500)")
        parser.add_argument("--entries", type=int, default=2_500, help="entries of 1 KB in each hop (default 2500)")
        parser.add_argument("--backlog", type=int, default=10_000, help="entries in each backlog (default 10000)")

    def run(self, args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
        for name in ("runs", "rate", "entries", "backlog"):
            if not getattr(args, name) >= 1:
                raise ValueError(f"--{name} must be at least 1, not {getattr(args, name)}")
        measured = Measured()
        with tempfile.TemporaryDirectory() as folder, Children(Path(folder)) as children:
            url = start_valkey(children, Path(folder))
            for run in range(args.runs):
                progress(f"run {run + 1} of {args.runs}: backlog of {args.backlog} entries")
                measured.grouped_s.append(grouped_s(url, run, args.backlog))
                measured.routed_s.append(routed_s(url, PoolKeys(POOL), run, args.backlog))
            measured.stream_bytes = stream_bytes(url, PoolKeys(f"{POOL}-memory"), MEMORY_STREAMS, MEMORY_ENTRIES)
            _hops(children, url, args, measured, progress)
        return report(measured, args)


def _hops(
    children: Children, url: str, args: argparse.Namespace, measured: Measured, progress: Callable[[str], None]
) -> None:
    pool = f"{POOL}-hop"
    route = [sys.executable, "-m", "stream2llm.commands.main", "route", "--redis", url, "--pool", pool]
    children.start("router", [*route, "--http", f"127.0.0.1:{free_port()}"])
    for run in range(args.runs):
        progress(f"run {run + 1} of {args.runs}: {args.entries} entries at {args.rate:g} a second")
        ages_us, _ = _hop(url, pool, args, run, bare=True)
        measured.bare_p50_us.append(percentile(ages_us, 50))
        measured.bare_p99_us.append(percentile(ages_us, 99))
        ages_us, in_flight = _hop(url, pool, args, run, bare=False)
        measured.routed_p50_us.append(percentile(ages_us, 50))
        measured.routed_p99_us.append(percentile(ages_us, 99))
        measured.in_flight.append(in_flight)
        children.check()


def _hop(url: str, pool: str, args: argparse.Namespace, run: int, *, bare: bool) -> tuple[list[float], int]:
    """The ages of all entries at the consumer, and the most entries that were on the way at a time."""
    client, keys = connect(url), PoolKeys(pool)
    common = ["--url", url, "--pool", pool, "--count", str(args.entries), "--run", str(run)]
    client.delete(BARE_KEY)
    consumer = _role("consume-bare" if bare else "consume-pod", common)
    if not bare:
        _wait(lambda: client.hexists(keys.pods, POD), "the stand-in pod")
        for stream in stream_names(run):
            client.xadd(keys.ingress(DEFAULT_TENANT), open_fields(stream))  # type: ignore[arg-type]
        last = keys.route(DEFAULT_TENANT, stream_names(run)[-1])
        _wait(lambda: client.hget(last, "state") == b"open", "the router")
    producer = _role("produce", [*common, "--rate", str(args.rate), *(["--bare"] if bare else [])])
    most = 0
    incarnation = _incarnation(client.hget(keys.pods, POD)) if not bare else ""
    while consumer.poll() is None:
        if not bare:
            ways = (keys.ingress(DEFAULT_TENANT), keys.log(POD, incarnation))
            most = max(most, sum(int(client.xlen(key)) for key in ways))
        time.sleep(SAMPLE_S)
    output, _ = consumer.communicate(timeout=PROCESS_TIMEOUT_S)
    producer.communicate(timeout=PROCESS_TIMEOUT_S)
    if consumer.returncode or producer.returncode:
        raise Unavailable(f"a process of the bench ended with {consumer.returncode or producer.returncode}")
    if not bare:
        for stream in stream_names(run):
            client.xadd(keys.ingress(DEFAULT_TENANT), encode_entry(Cancel(stream)))  # type: ignore[arg-type]
        # The next run's pod would be given what is still open, and take old entries for slow ones.
        routes = [keys.route(DEFAULT_TENANT, stream) for stream in stream_names(run)]
        _wait(lambda: all(client.hget(route, "state") == b"ended" for route in routes), "the end of the streams")
    return json.loads(output), most


def _role(role: str, arguments: Sequence[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "stream2llm_bench.route.roles", role, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _incarnation(raw: Any) -> str:
    return str(json.loads(raw)["incarnation"])


def _wait(ready: Callable[[], object], what: str) -> None:
    give_up_s = time.monotonic() + PROCESS_TIMEOUT_S
    while not ready():
        if time.monotonic() > give_up_s:
            raise Unavailable(f"{what} did not come within {PROCESS_TIMEOUT_S:g} s")
        time.sleep(0.02)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of `values` (at least one) do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]


def report(measured: Measured, args: argparse.Namespace) -> Report:
    p50 = ratio_of_pairs(measured.routed_p50_us, measured.bare_p50_us)
    p99 = ratio_of_pairs(measured.routed_p99_us, measured.bare_p99_us)
    throughput = ratio_of_pairs(measured.grouped_s, measured.routed_s)
    rows = [
        _row("hop p50", measured.bare_p50_us, measured.routed_p50_us, "µs", p50),
        _row("hop p99", measured.bare_p99_us, measured.routed_p99_us, "µs", p99),
        _row(
            "throughput",
            [args.backlog / seconds for seconds in measured.grouped_s],
            [args.backlog / seconds for seconds in measured.routed_s],
            "entries/s",
            throughput,
        ),
    ]
    return Report(
        "route",
        {
            "hop_ratio_p50": round(p50.median, 3),
            "hop_ratio_p50_spread": [round(bound, 3) for bound in p50.spread],
            "hop_ratio_p99": round(p99.median, 3),
            "hop_ratio_p99_spread": [round(bound, 3) for bound in p99.spread],
            "throughput_ratio": round(throughput.median, 3),
            "throughput_ratio_spread": [round(bound, 3) for bound in throughput.spread],
            "entries_in_flight": max(measured.in_flight),
            "bytes_per_open_stream": round(measured.stream_bytes),
            "runs": args.runs,
        },
        [
            Table(
                f"{args.runs} interleaved runs: {args.entries} entries at {args.rate:g} a second; "
                f"a backlog of {args.backlog}",
                ("", "bare", "through the router", "ratio (lowest to highest)"),
                rows,
            )
        ],
        lambda path: draw(measured, path),
        [
            f"most entries in flight at a time (ingress and pod log): {max(measured.in_flight)}",
            f"Redis memory of an open stream with {MEMORY_ENTRIES} entries: {measured.stream_bytes / 1024:.1f} KB",
        ],
    )


def _row(name: str, bare: Sequence[float], routed: Sequence[float], unit: str, ratio: Ratio) -> tuple[str, ...]:
    return name, f"{statistics.median(bare):.0f} {unit}", f"{statistics.median(routed):.0f} {unit}", str(ratio)


def draw(measured: Measured, path: Path) -> None:
    """Median latency of both hops, run by run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3))
    runs = range(1, len(measured.bare_p50_us) + 1)
    axes.plot(runs, measured.bare_p50_us, "o-", label="bare XADD to XREAD")
    axes.plot(runs, measured.routed_p50_us, "o-", label="through the router")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("run")
    axes.set_ylabel("p50 in µs")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


BENCH = RouteBench()
