"""The comparison and its report."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stream2llm.costprofile import CostProfile
from stream2llm_bench.preemption.replaying import Outcome
from stream2llm_bench.reporting import Report, Table
from stream2llm_bench.requiring import check_vllm_can_load

RECOMPUTE, SWAP, COST = WAYS = ("recompute", "swap", "cost")
PERCENTILES = (50, 95, 99)
MIXED = "mixed"


@dataclass(slots=True)
class Pooled:
    """The runs of one workload in one way, over all seeds."""

    ttft_ms: list[float] = field(default_factory=list)
    recomputed_tokens: int = 0
    preemptions: dict[str, int] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        self.ttft_ms.extend(outcome.ttft_ms)
        self.recomputed_tokens += outcome.recomputed_tokens
        for kind, count in outcome.preemptions.items():
            self.preemptions[kind] = self.preemptions.get(kind, 0) + count

    def percentile_ms(self, percent: float) -> float:
        return float(np.percentile(self.ttft_ms, percent))

    def figures(self) -> dict[str, Any]:
        return {
            "ttft_ms": {f"p{percent}": round(self.percentile_ms(percent), 2) for percent in PERCENTILES},
            "recomputed_tokens": self.recomputed_tokens,
            "preemptions": self.preemptions,
        }


Runs = Mapping[str, Mapping[str, Pooled]]
"""Workload → way → its runs."""


class PreemptionBench:
    name = "preemption"
    help = "recomputing, swapping and choosing by cost: virtual time with crossing curves, then SmolLM2"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--seeds", type=int, default=5, metavar="N", help="runs of each workload (default: 5)")
        parser.add_argument("--no-real", action="store_true", help="leave out the real engine (two minutes)")

    def run(self, args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
        if args.seeds < 1:
            raise ValueError(f"--seeds must be at least 1, not {args.seeds}")
        check_vllm_can_load()
        from stream2llm_bench.preemption.virtual import WORKLOADS, VirtualEngine, crossing_profile

        progress("virtual time: starting vLLM's engine core without a model")
        engine = VirtualEngine()
        profile = crossing_profile(engine.key)
        runs: dict[str, dict[str, Pooled]] = {}
        for workload in WORKLOADS:
            runs[workload.name] = {way: Pooled() for way in WAYS}
            for seed in range(args.seeds):
                progress(f"virtual time: {workload.name}, seed {seed}")
                streams = workload.draw(seed)
                for way in WAYS:
                    runs[workload.name][way].add(engine.run(streams, way, profile))
        real: dict[str, Pooled] = {}
        if not args.no_real:
            real = _run_real(progress)
        return make_report(runs, real, profile)


def _run_real(progress: Callable[[str], None]) -> dict[str, Pooled]:
    from stream2llm_bench.demo.model import ensure_model
    from stream2llm_bench.preemption.real import run_real

    runs = run_real(str(ensure_model(progress)), WAYS, progress)
    pooled = {}
    for way, outcome in runs.outcomes.items():
        pooled[way] = Pooled()
        pooled[way].add(outcome)
    return pooled


def cost_vs_best(runs: Mapping[str, Pooled], percent: float) -> float:
    """The percentile of `cost` ÷ that of the better of the other two; below 1 it is better than both."""
    best_ms = min(runs[way].percentile_ms(percent) for way in (RECOMPUTE, SWAP))
    return runs[COST].percentile_ms(percent) / best_ms


def make_report(runs: Runs, real: Mapping[str, Pooled], profile: CostProfile) -> Report:
    """`virtual` is the mixed workload; all of them are under `workloads`. `cost_vs_best_p99` is the worst of all."""
    workloads = {
        name: {
            **{way: of_way[way].figures() for way in WAYS},
            "cost_vs_best": {f"p{percent}": round(cost_vs_best(of_way, percent), 3) for percent in PERCENTILES},
        }
        for name, of_way in runs.items()
    }
    figures: dict[str, Any] = {
        "virtual": workloads[MIXED],
        "real": {way: pooled.figures() for way, pooled in real.items()},
        "cost_vs_best_p99": max(of_workload["cost_vs_best"]["p99"] for of_workload in workloads.values()),
        "workloads": workloads,
    }
    tables = [
        Table(
            "Virtual time: TTFT, ms, with the KV cache at a third of what open streams need",
            ("workload", "preemption", "p50", "p95", "p99", "recomputed tokens", "recomputed", "swapped"),
            [row for name, of_way in runs.items() for row in _rows(name, of_way)],
        ),
        Table(
            "cost ÷ the better of recompute and swap (below 1: cost is better)",
            ("workload", *(f"p{percent}" for percent in PERCENTILES)),
            [
                (name, *(f"{cost_vs_best(of_way, percent):.3f}" for percent in PERCENTILES))
                for name, of_way in runs.items()
            ],
        ),
    ]
    if real:
        tables.append(
            Table(
                "Real engine, SmolLM2 on this machine's CPU: TTFT, ms",
                ("workload", "preemption", "p50", "p95", "p99", "recomputed tokens", "recomputed", "swapped"),
                list(_rows("real", real)),
            )
        )
    from stream2llm_pod.profiling.crossing import crossings

    crossing = ", ".join(f"{way} from {tokens} tokens" for tokens, way in crossings(profile))
    return Report(
        PreemptionBench.name,
        figures,
        tables,
        lambda path: draw(runs, path),
        [f"Curves of the virtual hardware: {crossing}. Percentiles are over all streams of all seeds."],
    )


def _rows(name: str, of_way: Mapping[str, Pooled]) -> Sequence[Sequence[str]]:
    return [
        (
            name,
            way,
            *(f"{pooled.percentile_ms(percent):.1f}" for percent in PERCENTILES),
            str(pooled.recomputed_tokens),
            str(pooled.preemptions.get(RECOMPUTE, 0)),
            str(pooled.preemptions.get(SWAP, 0)),
        )
        for way, pooled in of_way.items()
    ]


def draw(runs: Runs, path: Path) -> None:
    """Distribution of the time to first token, one panel a workload."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(runs), figsize=(4 * len(runs), 3.4), sharey=True, squeeze=False)
    for axes, (name, of_way) in zip(panels[0], runs.items(), strict=True):
        for way, pooled in of_way.items():
            ordered = np.sort(pooled.ttft_ms)
            axes.plot(ordered, 100 * np.arange(1, len(ordered) + 1) / len(ordered), label=way)
        axes.set_title(name)
        axes.set_xscale("log")
        axes.set_xlabel("TTFT, ms")
    panels[0][0].set_ylabel("streams, %")
    panels[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


BENCH = PreemptionBench()
