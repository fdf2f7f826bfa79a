"""The comparison and its report."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stream2llm_bench.failing import Unavailable
from stream2llm_bench.options import at_least_one
from stream2llm_bench.policies.comparing import PERCENTILES, RIVALS, Runs, judge
from stream2llm_bench.reporting import Report, Table
from stream2llm_bench.requiring import check_vllm_can_load
from stream2llm_bench.simulating.hardware import ANNS_PRESSURE_KV_TOKENS, find_hardware
from stream2llm_bench.simulating.lower_bound import lower_bound_s

OURS = ("srpf", "auto")
WAITING, BOUND = "stock, waiting", "lower bound"
"""vLLM's own order given whole prompts; and each stream on a machine of its own with infinite memory."""
FIRST_SEED = 42


@dataclass(frozen=True, slots=True)
class Case:
    """One workload at one load."""

    name: str
    workload: str
    qps: float
    delay_multiplier: float = 1.0
    kv_tokens: int | None = None


CASES = (
    Case("crawler 2/s", "crawler", 2.0),
    Case("crawler 4/s", "crawler", 4.0),
    Case("anns 1/s", "anns", 1.0),
    Case("anns 2/s", "anns", 2.0),
    Case("crawler pressure", "crawler", 4.0, 10.0),
    Case("anns pressure", "anns", 2.0, 30.0, ANNS_PRESSURE_KV_TOKENS),
)


class PoliciesBench:
    name = "policies"
    help = "our policies beside the paper's on its workloads, with the least time that is possible"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--seeds", type=at_least_one, default=5, metavar="N", help="arrival seeds (default: 5)")
        parser.add_argument("--requests", type=at_least_one, default=1000, metavar="N", help="at most (default: 1000)")
        parser.add_argument("--preemption", default="recompute", choices=("recompute", "swap", "cost"))
        parser.add_argument("--policies", nargs="+", metavar="P", help="default: all of ours and the paper's")
        parser.add_argument("--cases", nargs="+", metavar="NAME", help=f"default: {', '.join(c.name for c in CASES)}")

    def run(self, args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
        check_vllm_can_load()
        cases = [case for case in CASES if args.cases is None or case.name in args.cases]
        unknown = sorted(set(args.cases or ()) - {case.name for case in CASES})
        if unknown:
            raise Unavailable(f"no case is called {', '.join(unknown)}; there are {', '.join(c.name for c in CASES)}")
        runs = {case.name: run_case(case, args, progress) for case in cases}
        return make_report(runs, args.seeds, args.requests, args.preemption)


def run_case(case: Case, args: argparse.Namespace, progress: Callable[[str], None]) -> dict[str, Runs]:
    """Every policy on the same streams, seed by seed."""
    from stream2llm_bench.simulating.engine import BUDGETS, Setting, SimulatedEngine
    from stream2llm_bench.simulating.peers import registered
    from stream2llm_bench.workloads.scenarios import REQUESTS, plain
    from stream2llm_pod.scheduling.policies import POLICIES

    hardware, budget_tokens = find_hardware("h200-tp2"), BUDGETS[case.workload]
    policies = args.policies or (*OURS, *RIVALS)
    runs: dict[str, Runs] = {name: Runs() for name in (*policies, WAITING, BOUND)}
    with registered():
        unknown = sorted(set(policies) - set(POLICIES))
        if unknown:
            raise Unavailable(f"policy {', '.join(unknown)} is not known; choose from {', '.join(POLICIES)}")
        engine = SimulatedEngine()
        for seed in range(FIRST_SEED, FIRST_SEED + args.seeds):
            count = min(args.requests, REQUESTS[case.workload])
            streams = plain(case.workload, case.qps, count, case.delay_multiplier).draw(seed)
            for name in (*policies, WAITING):
                progress(f"{case.name}, seed {seed}: {name}")
                setting = Setting(
                    hardware,
                    policy="default" if name == WAITING else name,
                    preemption=args.preemption,
                    streaming=name != WAITING,
                    budget_tokens=budget_tokens,
                    kv_tokens=case.kv_tokens,
                )
                outcome = engine.run(streams, setting)
                runs[name].add(outcome.ttft_s, outcome.completion_s)
            least_s = [lower_bound_s(stream, hardware, budget_tokens) for stream in streams]
            ends_s = [stream.starts_s + stream.duration_s + s for stream, s in zip(streams, least_s, strict=True)]
            runs[BOUND].add(least_s, max(ends_s))
    return runs


def make_report(runs: Mapping[str, Mapping[str, Runs]], seeds: int, requests: int, preemption: str) -> Report:
    """`verdicts` holds for each of our policies, case by case, its times ÷ those of the best rival."""
    figures: dict[str, Any] = {"seeds": seeds, "requests": requests, "preemption": preemption, "cases": {}}
    rows: list[Sequence[str]] = []
    verdict_rows: list[Sequence[str]] = []
    for case, of_case in runs.items():
        verdicts = {name: judge(name, of_case) for name in OURS if name in of_case}
        figures["cases"][case] = {
            "policies": {name: own.figures() for name, own in of_case.items()},
            "verdicts": {name: verdict.figures() for name, verdict in verdicts.items()},
        }
        for name, own in of_case.items():
            shown = [f"{own.mean_ms(percentile):,.0f}" for percentile in PERCENTILES]
            bound = [f"{own.mean_ms(p) / of_case[BOUND].mean_ms(p):.2f}" for p in PERCENTILES]
            rows.append((case, name, *shown, f"{max(own.longest_ms):,.0f}", " / ".join(bound)))
        for name, verdict in verdicts.items():
            ratios = [f"{verdict.against_best[p]:.3f} ({verdict.best[p]})" for p in PERCENTILES]
            good = "yes" if verdict.at_least_as_good else "no"
            verdict_rows.append((case, name, *ratios, f"{verdict.completion_against_best:.4f}", good))
    return Report(
        PoliciesBench.name,
        figures,
        [
            Table(
                f"Time to first token, ms: means over {seeds} arrival seeds, up to {requests} requests, {preemption}",
                ("case", "policy", *PERCENTILES, "longest", "times the lower bound"),
                rows,
            ),
            Table(
                "Ours ÷ the best of the paper's policies at each percentile (below 1: ours is faster)",
                ("case", "policy", *PERCENTILES, "completion", "within 3 %"),
                verdict_rows,
            ),
        ],
        lambda path: draw(runs, path),
    )


def draw(runs: Mapping[str, Mapping[str, Runs]], path: Path) -> None:
    """P99 of every policy, a group a case."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(name for of_case in runs.values() for name in of_case))
    figure, panels = pyplot.subplots(1, len(PERCENTILES), figsize=(4.5 * len(PERCENTILES), 4), squeeze=False)
    width = 0.8 / len(names)
    for axes, percentile in zip(panels[0], PERCENTILES, strict=True):
        for i, name in enumerate(names):
            places = [j + i * width for j, of_case in enumerate(runs.values()) if name in of_case]
            heights = [of_case[name].mean_ms(percentile) for of_case in runs.values() if name in of_case]
            axes.bar(places, heights, width, label=name)
        axes.set_xticks([j + 0.4 for j in range(len(runs))], list(runs), rotation=30, ha="right", fontsize=7)
        axes.set_yscale("log")
        axes.set_title(f"{percentile}, ms")
    panels[0][0].legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


BENCH = PoliciesBench()
