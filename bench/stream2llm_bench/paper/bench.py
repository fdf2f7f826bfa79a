"""The comparison and its report."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stream2llm_bench.failing import Unavailable
from stream2llm_bench.options import at_least_one, seed
from stream2llm_bench.paper.comparing import THIRD, Cell, Times, baseline_errors, cells_of, rank_correlation
from stream2llm_bench.paper.published import (
    NON_STREAMING,
    PERCENTILES,
    STREAMING,
    Condition,
    load_preemptions,
    load_published,
)
from stream2llm_bench.reporting import Report, Table
from stream2llm_bench.requiring import check_vllm_can_load
from stream2llm_bench.simulating.artifact import ARTIFACT_DEFAULT
from stream2llm_bench.simulating.keeping import KeptRuns, Work, at_most, kept_runs
from stream2llm_bench.simulating.keeping import add_arguments as add_run_arguments

ARTIFACTS: Mapping[str, tuple[str, bool]] = {
    NON_STREAMING: (ARTIFACT_DEFAULT, False),
    STREAMING: (ARTIFACT_DEFAULT, True),
    "fcfs": ("artifact-fcfs", True),
    "lcas": ("artifact-lcas", True),
    "mcps": ("artifact-mcps", True),
}
"""Published name → (scheduler of the artifact, whether prompts stream): how memory is found is part of it."""
OURS: Mapping[str, tuple[str, bool]] = {
    NON_STREAMING: ("default", False),
    STREAMING: (ARTIFACT_DEFAULT, True),
    "fcfs": ("fcfs", True),
    "lcas": ("lcas-oldest", True),
    "mcps": ("mcps", True),
}
"""Published name → (policy of our scheduler, whether prompts stream). The published LCAS figures are of the artifact,
which serves the oldest last chunk first; default streaming is the artifact's too, since ours would not stand still."""
ARTIFACT_COPIES = {"h200-tp2": "h200-tp2-artifact"}
PRESSURE_REQUESTS = 1200
PRESSURE, NORMAL = "pressure", "normal"
Preemptions = Mapping[str, Mapping[str, int]]
"""Policy or baseline → kind → how many."""


class PaperBench:
    name = "paper"
    help = "the published evaluation of Stream2LLM beside the simulation of it"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--hardware", choices=("h200-tp2", "h100-tp2"), help="one of the two only")
        parser.add_argument("--workload", choices=("crawler", "anns"), help="one of the two only")
        parser.add_argument("--load", choices=(NORMAL, PRESSURE), help="without, or with, stretched delays only")
        parser.add_argument(
            "--requests",
            type=at_least_one,
            metavar="N",
            help="at most so many (default: as published; with --our-scheduler, where delays are stretched, "
            f"{PRESSURE_REQUESTS})",
        )
        parser.add_argument(
            "--our-scheduler",
            action="store_true",
            help="where delays are stretched, our scheduler with the published orders in place of the artifact's "
            "schedulers: the engine runs, for about ten minutes",
        )
        parser.add_argument("--seed", type=seed, default=42, metavar="S", help="default: 42")
        add_run_arguments(parser)

    def run(self, args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
        check_vllm_can_load()
        published = {condition: row for condition, row in load_published().items() if asked_for(condition, args)}
        if not published:
            raise Unavailable("no published experiment has this hardware, workload and load together")
        kept = kept_runs(args, progress)
        pressure_requests = args.requests
        if pressure_requests is None and args.our_scheduler:
            pressure_requests = PRESSURE_REQUESTS
        times, preemptions = simulate(
            published, args.requests, pressure_requests, args.seed, kept, our_scheduler=args.our_scheduler
        )
        return make_report(times, args.requests, args.seed, preemptions, kept.notes())


def asked_for(condition: Condition, args: argparse.Namespace) -> bool:
    return (
        args.hardware in (None, condition.hardware)
        and args.workload in (None, condition.workload)
        and args.load in (None, PRESSURE if condition.pressure else NORMAL)
    )


def simulate(
    conditions: Iterable[Condition],
    requests: int | None,
    pressure_requests: int | None,
    arrival_seed: int,
    kept: KeptRuns,
    *,
    our_scheduler: bool = False,
) -> tuple[dict[Condition, Times], dict[Condition, Preemptions]]:
    """Times to first token of every policy and both baselines, in seconds; and their preemptions by kind, where delays
    are stretched."""
    import numpy as np

    from stream2llm_bench.simulating.engine import Setting
    from stream2llm_bench.simulating.hardware import ANNS_PRESSURE_KV_TOKENS, BUDGETS, find_hardware
    from stream2llm_bench.simulating.peers import registered

    times: dict[Condition, Times] = {}
    preemptions: dict[Condition, Preemptions] = {}
    with registered():
        for condition in conditions:
            work = Work(
                condition.workload,
                condition.qps,
                at_most(condition.workload, pressure_requests if condition.pressure else requests),
                condition.delay_multiplier,
                arrival_seed,
            )
            of_condition = {}
            counted = {}
            schedulers = ARTIFACTS if condition.pressure and not our_scheduler else OURS
            for name, (policy, streaming) in schedulers.items():
                hardware = condition.hardware
                if condition.pressure:
                    hardware = ARTIFACT_COPIES.get(hardware, hardware)
                setting = Setting(
                    find_hardware(hardware),
                    policy=policy,
                    # Elsewhere memory suffices, and nobody is preempted.
                    preemption=condition.preemption if condition.pressure else "recompute",
                    streaming=streaming,
                    budget_tokens=BUDGETS[condition.workload],
                    kv_tokens=ANNS_PRESSURE_KV_TOKENS if condition.pressure and condition.workload == "anns" else None,
                )
                outcome = kept.run(work, setting)
                of_condition[name] = {
                    key: float(np.percentile(outcome.ttft_s, percent)) for key, percent in PERCENTILES.items()
                }
                counted[name] = outcome.preemptions
            times[condition] = of_condition
            if condition.pressure:
                preemptions[condition] = counted
    return times, preemptions


def describe(condition: Condition) -> str:
    return (
        f"{condition.hardware} {condition.workload} {condition.qps:g}/s"
        f"{f' delays x{condition.delay_multiplier:g}, {condition.preemption}' if condition.pressure else ''}"
    )


def make_report(
    times: Mapping[Condition, Times],
    requests: int | None,
    arrival_seed: int,
    preemptions: Mapping[Condition, Preemptions],
    notes: Sequence[str] = (),
) -> Report:
    """`within_third` is the share of cells whose error is at most a third; times and preemptions are `simulate`'s."""
    published = load_published()
    cells = [cell for condition, of_it in times.items() for cell in cells_of(condition, published[condition], of_it)]
    groups = _groups(cells)
    correlation = rank_correlation(cells)
    return Report(
        PaperBench.name,
        {
            "cells": [cell.figures() for cell in cells],
            "within_third": round(sum(cell.within_third for cell in cells) / len(cells), 4) if cells else None,
            "rank_correlation": None if math.isnan(correlation) else round(correlation, 4),
            "groups": {name: _group_figures(of_group) for name, of_group in groups.items()},
            "baselines": [
                {"condition": describe(condition), "error": baseline_errors(published[condition], of_it)}
                for condition, of_it in times.items()
            ],
            "preemptions": [
                {"condition": describe(condition), "ours": of_it} for condition, of_it in preemptions.items()
            ],
            "requests": requests,
            "seed": arrival_seed,
        },
        [_summary(groups), _baselines(times), *_preemptions(preemptions), _cells(cells)],
        lambda path: draw(cells, path),
        ["Ratios are baseline ÷ policy: above 1 the policy is faster. An error is ours ÷ published, less 1.", *notes],
    )


def _groups(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    groups: dict[str, list[Cell]] = {"all": list(cells)}
    for cell in cells:
        load = PRESSURE if cell.condition.pressure else NORMAL
        groups.setdefault(f"{cell.condition.hardware} {cell.condition.workload} {load}", []).append(cell)
    for baseline in (STREAMING, NON_STREAMING):
        groups[f"against {baseline}"] = [cell for cell in cells if cell.baseline == baseline]
    return groups


def _group_figures(cells: Sequence[Cell]) -> dict[str, Any]:
    correlation = rank_correlation(cells)
    return {
        "cells": len(cells),
        "within_third": sum(cell.within_third for cell in cells),
        "rank_correlation": None if math.isnan(correlation) else round(correlation, 3),
    }


def _summary(groups: Mapping[str, Sequence[Cell]]) -> Table:
    rows = []
    for name, cells in groups.items():
        figures = _group_figures(cells)
        rows.append((name, str(len(cells)), str(figures["within_third"]), str(figures["rank_correlation"])))
    return Table("Cells, and how many are within a third", ("cells of", "number", "within a third", "rank corr."), rows)


def _baselines(times: Mapping[Condition, Times]) -> Table:
    published = load_published()
    rows = []
    for condition, of_it in times.items():
        for baseline in (STREAMING, NON_STREAMING):
            theirs = published[condition].baselines_s[baseline]
            shown = [f"{of_it[baseline][name]:.3f} / {theirs[name]:.3f}" for name in PERCENTILES]
            rows.append((describe(condition), baseline, *shown))
    return Table("Baselines, seconds: ours / published", ("experiment", "baseline", *PERCENTILES), rows)


def _preemptions(counts: Mapping[Condition, Preemptions]) -> list[Table]:
    """No table where there are none."""
    if not counts:
        return []
    published = load_preemptions()
    rows = []
    for condition, of_it in counts.items():
        theirs = published[condition.workload, condition.preemption]
        shown = [
            f"{' + '.join(str(count) for _, count in sorted(of_it[name].items()))} / {theirs[name]}" for name in theirs
        ]
        rows.append((describe(condition), *shown))
    columns = ("experiment", STREAMING, "fcfs", "lcas", "mcps")
    return [Table("Preemptions, ours by recompute + swap / published", columns, rows)]


def _cells(cells: Sequence[Cell]) -> Table:
    rows = [
        (
            describe(cell.condition),
            cell.policy,
            cell.baseline,
            cell.percentile,
            f"{cell.published:.3f}",
            f"{cell.ours:.3f}",
            f"{cell.error:+.0%}{'' if cell.within_third else ' !'}",
        )
        for cell in cells
    ]
    columns = ("experiment", "policy", "against", "at", "published", "ours", "error")
    return Table("All cells; ! marks those off by more than a third", columns, rows)


def draw(cells: Sequence[Cell], path: Path) -> None:
    """Our ratios over the published, with the band of a third."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 4.2))
    for axes, baseline in zip(panels, (STREAMING, NON_STREAMING), strict=True):
        for policy in ("fcfs", "lcas", "mcps"):
            own = [cell for cell in cells if cell.policy == policy and cell.baseline == baseline]
            axes.plot([cell.published for cell in own], [cell.ours for cell in own], "o", ms=3, label=policy)
        line = [0.1, 20]
        axes.plot(line, line, color="grey", lw=0.8)
        axes.fill_between(line, [x * (1 - THIRD) for x in line], [x * (1 + THIRD) for x in line], alpha=0.15)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(f"against {baseline}")
        axes.set_xlabel("published")
    panels[0].set_ylabel("simulated")
    panels[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


BENCH = PaperBench()
