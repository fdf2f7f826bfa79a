"""The comparison and its report."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stream2llm_bench.reporting import Report, Table
from stream2llm_bench.requiring import check_vllm_can_load

PERCENTILES = (50, 95)


@dataclass(slots=True)
class Pooled:
    """The runs of one scenario under one policy, over all seeds: milliseconds to the first token."""

    flooded_ms: list[float] = field(default_factory=list)
    alone_ms: list[float] = field(default_factory=list)
    used: list[float] = field(default_factory=list)

    def ratio(self, percent: float) -> float:
        return float(np.percentile(self.flooded_ms, percent) / np.percentile(self.alone_ms, percent))

    def figures(self) -> dict[str, Any]:
        return {
            "flooded_ms": {f"p{p}": round(float(np.percentile(self.flooded_ms, p)), 1) for p in PERCENTILES},
            "alone_ms": {f"p{p}": round(float(np.percentile(self.alone_ms, p)), 1) for p in PERCENTILES},
            "ratio": {f"p{p}": round(self.ratio(p), 3) for p in PERCENTILES},
            "used": round(float(np.mean(self.used)), 3),
        }


Results = Mapping[str, Mapping[str, Pooled]]
"""Scenario → policy → its runs."""


class TenantsBench:
    name = "tenants"
    help = "a tenant beside one that floods the engine, and alone on its share; virtual time, no model runs"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--seeds", type=int, default=4, metavar="N", help="runs of each scenario (default: 4)")
        parser.add_argument("--streams", type=int, default=40, metavar="N", help="measured streams (default: 40)")

    def run(self, args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
        if args.seeds < 1 or args.streams < 1:
            raise ValueError("--seeds and --streams must be at least 1")
        check_vllm_can_load()
        from stream2llm_bench.tenants.virtual import SharedEngine, compare, scenarios
        from stream2llm_pod.scheduling.policies import POLICIES

        progress("starting vLLM's engine core without a model")
        engine = SharedEngine()
        results: dict[str, dict[str, Pooled]] = {}
        for scenario in scenarios(args.streams):
            results[scenario.name] = {policy: Pooled() for policy in POLICIES}
            for policy, pooled in results[scenario.name].items():
                progress(f"{scenario.name}, {policy}")
                for seed in range(args.seeds):
                    comparison = compare(engine, scenario, policy, seed)
                    pooled.flooded_ms += comparison.flooded_ms
                    pooled.alone_ms += comparison.alone_ms
                    pooled.used.append(comparison.used)
        return make_report(results)


def make_report(results: Results) -> Report:
    """`worst_p95_ratio` is over all scenarios and policies."""
    scenarios = {
        name: {policy: pooled.figures() for policy, pooled in of_policy.items()} for name, of_policy in results.items()
    }
    worst = max(pooled.ratio(95) for of_policy in results.values() for pooled in of_policy.values())
    rows = [
        (
            name,
            policy,
            f"{np.percentile(pooled.flooded_ms, 95):.0f}",
            f"{np.percentile(pooled.alone_ms, 95):.0f}",
            f"{pooled.ratio(95):.2f}",
            f"{np.mean(pooled.used):.2f}",
        )
        for name, of_policy in results.items()
        for policy, pooled in of_policy.items()
    ]
    return Report(
        TenantsBench.name,
        {"worst_p95_ratio": round(worst, 3), "scenarios": scenarios},
        [
            Table(
                "TTFT p95 of one tenant, ms, beside a flood of five times the other one's share",
                ("scenario", "policy", "flooded", "alone on its share", "ratio", "machine used"),
                rows,
            )
        ],
        lambda path: draw(results, path),
        ["Alone on its share: steps 1 ÷ share times as long, share times as many KV blocks and run slots."],
    )


def draw(results: Results, path: Path) -> None:
    """The p95 ratios, one group of bars a scenario."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 3.4))
    policies = list(next(iter(results.values())))
    for i, policy in enumerate(policies):
        positions = [group + i / (len(policies) + 1) for group in range(len(results))]
        axes.bar(
            positions,
            [of_policy[policy].ratio(95) for of_policy in results.values()],
            width=1 / (len(policies) + 1),
            label=policy,
        )
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks([group + 0.4 for group in range(len(results))], list(results))
    axes.set_ylabel("p95 flooded ÷ alone")
    axes.legend(ncols=4, fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


BENCH = TenantsBench()
