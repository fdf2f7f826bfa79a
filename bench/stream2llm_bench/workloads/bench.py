"""`bench workloads`: generated beside published."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stream2llm_bench.options import seed
from stream2llm_bench.reporting import Report, Table
from stream2llm_bench.workloads import anns, crawler
from stream2llm_bench.workloads.checking import TOLERANCE, Compared, compare
from stream2llm_bench.workloads.streams import Stream

GENERATED: Mapping[str, tuple[Callable[[int, int], list[Stream]], int]] = {
    crawler.NAME: (crawler.generate, 4309),
    anns.NAME: (anns.generate, 4997),
}
"""Generator, and how many queries the published distributions were taken from."""


class WorkloadsBench:
    name = "workloads"
    help = "the generated workloads beside the published figures"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--seed", type=seed, default=42, metavar="S", help="default: 42")

    def run(self, args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
        compared = {}
        for name, (generate, count) in GENERATED.items():
            progress(f"{name}: {count} queries")
            compared[name] = compare(name, generate(count, args.seed))
        return make_report(compared)


def make_report(compared: Mapping[str, Sequence[Compared]]) -> Report:
    """`within_tolerance` is true if every published figure is met."""
    rows, figures = [], {}
    for workload, of_workload in compared.items():
        figures[workload] = [_figure(one) for one in of_workload]
        rows += [_row(one) for one in of_workload]
    published = [one for of_workload in compared.values() for one in of_workload if one.error is not None]
    worst = max((abs(one.error) for one in published if one.error is not None), default=0.0)
    return Report(
        WorkloadsBench.name,
        {
            "within_tolerance": all(one.passes for one in published),
            "tolerance": TOLERANCE,
            "largest_error": round(worst, 4),
            "workloads": figures,
        },
        [Table("Generated beside published", ("workload", "what", "figure", "generated", "published", "error"), rows)],
        lambda path: draw(compared, path),
        ["Figures marked `assumed` are not published; docs/simulation.md says what they rest on and what they change."],
    )


def _figure(one: Compared) -> dict[str, Any]:
    return {
        "what": one.what,
        "figure": one.figure,
        "generated": round(one.generated, 4),
        "published": one.published,
        "error": None if one.error is None else round(one.error, 4),
    }


def _row(one: Compared) -> Sequence[str]:
    known = ("assumed", "") if one.error is None else (f"{one.published:,.2f}", f"{one.error:+.1%}")
    return (one.workload, one.what, one.figure, f"{one.generated:,.2f}", *known)


def draw(compared: Mapping[str, Sequence[Compared]], path: Path) -> None:
    """Generated over published figures, on the diagonal where they agree."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(4.5, 4.5))
    for workload, of_workload in compared.items():
        known = [one for one in of_workload if one.published is not None]
        axes.plot([one.published for one in known], [one.generated for one in known], "o", ms=4, label=workload)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.plot((0.1, 1e5), (0.1, 1e5), color="grey", lw=0.8)
    axes.set_xlabel("published")
    axes.set_ylabel("generated")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


BENCH = WorkloadsBench()
