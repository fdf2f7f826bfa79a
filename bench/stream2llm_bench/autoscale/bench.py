"""The comparison and its report."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stream2llm_bench.autoscale.comparing import OURS, WAYS, Day, run
from stream2llm_bench.autoscale.serving import Hardware
from stream2llm_bench.autoscale.traffic import Traffic
from stream2llm_bench.options import seed
from stream2llm_bench.reporting import Report, Table

PERCENTILES = (50, 95, 99)
SHORT = {"preemption": OURS, "kv": "kv cache", "queue": "queue"}
"""The comparison in short: signals by preemptions, the KV cache at the same target, waiting requests."""


class AutoscaleBench:
    name = "autoscale"
    help = "a day of bursty traffic, scaled on our signals, on the KV cache alone and on the queue alone"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--hours", type=_hours, default=24.0, metavar="H", help="length of the day (default: 24)")
        parser.add_argument("--seed", type=seed, default=42, metavar="S", help="default: 42")

    def run(self, args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
        streams = Traffic().draw(args.seed, args.hours)
        progress(f"{len(streams)} streams in {args.hours:g} hours")
        days: dict[str, Day] = {}
        for way in WAYS:
            days[way.name] = run(
                streams,
                way,
                Hardware(),
                lambda share, name=way.name: progress(f"{name}: {share:.0%}"),  # type: ignore[misc]
            )
        return make_report(days)


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours <= 24 * 7:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0 and up to 168")
    return hours


def make_report(days: Mapping[str, Day]) -> Report:
    """`ours_vs_best`: ours by the better of the others, of replica hours and of the 95th percentile; below 1 ours is
    better."""
    ways = {name: _figures(day) for name, day in days.items()}
    others = [figures for name, figures in ways.items() if name != OURS]
    figures = {
        **{key: _short(days[name]) for key, name in SHORT.items() if name in days},
        "ways": ways,
        "ours_vs_best": {
            what: round(ways[OURS][what] / max(min(other[what] for other in others), 1e-9), 3)
            for what in ("replica_hours", "ttft_p95_s")
        },
    }
    rows = [
        (
            name,
            f"{of_way['replica_hours']:.1f}",
            *(f"{of_way[f'ttft_p{percent}_s']:.2f}" for percent in PERCENTILES),
            f"{of_way['waste_hours']:.2f}",
            str(of_way["changes"]),
            str(of_way["reversals"]),
            str(of_way["unanswered"]),
        )
        for name, of_way in ways.items()
    ]
    titles = ("scaled on", "replica hours", *(f"TTFT p{percent}, s" for percent in PERCENTILES))
    table = Table(
        "A day of bursty traffic",
        (*titles, "hours lost to preemptions", "changes", "reversals", "unanswered"),
        rows,
    )
    return Report(AutoscaleBench.name, figures, [table], lambda path: draw(days, path))


def _short(day: Day) -> dict[str, Any]:
    return {
        "replica_hours": round(day.replica_hours, 2),
        "ttft_p95_ms": round(1000 * float(np.percentile(day.ttft_s, 95)) if day.ttft_s else 0.0, 1),
        "lost_streams": day.unanswered,
        "direction_changes": day.direction_changes,
    }


def _figures(day: Day) -> dict[str, Any]:
    percentiles = {
        f"ttft_p{percent}_s": round(float(np.percentile(day.ttft_s, percent)) if day.ttft_s else 0.0, 3)
        for percent in PERCENTILES
    }
    return {
        "replica_hours": round(day.replica_hours, 2),
        **percentiles,
        "waste_hours": round(day.waste_hours, 3),
        "changes": len(day.changes),
        "reversals": day.reversals,
        "most_pods": max((after for _, _, after in day.changes), default=1),
        "unanswered": day.unanswered,
    }


def draw(days: Mapping[str, Day], path: Path) -> None:
    """Pods over the day, and the distribution of times to first token."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (pods, times) = pyplot.subplots(1, 2, figsize=(11, 3.6), width_ratios=(2, 1))
    for name, day in days.items():
        hours, counts = _steps(day.changes)
        pods.step(hours, counts, where="post", label=name, lw=1)
        ordered = np.sort(day.ttft_s)
        times.plot(ordered, 100 * np.arange(1, len(ordered) + 1) / max(len(ordered), 1), label=name)
    pods.set_xlabel("hour")
    pods.set_ylabel("pods asked for")
    pods.legend()
    times.set_xscale("log")
    times.set_xlabel("TTFT, s")
    times.set_ylabel("streams, %")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _steps(changes: Sequence[tuple[float, int, int]]) -> tuple[list[float], list[int]]:
    hours, counts = [0.0], [changes[0][1] if changes else 1]
    for when_s, _, after in changes:
        hours.append(when_s / 3600)
        counts.append(after)
    return hours, counts


BENCH = AutoscaleBench()
