"""The comparison and its report."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream2llm_bench.failing import Unavailable
from stream2llm_bench.options import at_least_one
from stream2llm_bench.policies.comparing import ORDERS, PERCENTILES, RIVALS, Runs, Verdict, judge
from stream2llm_bench.reporting import Report, Table
from stream2llm_bench.requiring import check_vllm_can_load
from stream2llm_bench.simulating.artifact import ARTIFACT, ARTIFACT_DEFAULT, order_of
from stream2llm_bench.simulating.hardware import ANNS_PRESSURE_KV_TOKENS, BUDGETS, HARDWARE, Hardware, find_hardware
from stream2llm_bench.simulating.keeping import KeptRuns, Work, at_most, kept_runs
from stream2llm_bench.simulating.keeping import add_arguments as add_run_arguments
from stream2llm_bench.simulating.lower_bound import lower_bound_s

if TYPE_CHECKING:
    from stream2llm_bench.simulating.engine import Setting

OURS = "auto"
WAITING, BOUND = "stock, waiting", "lower bound"
"""vLLM's own order given whole prompts; and each stream on a machine of its own with infinite memory."""
FIRST_SEED = 42

AMPLE_RIVALS = (*ORDERS, ARTIFACT_DEFAULT)
"""With room for everybody the artifact's other schedulers do what ours does in their orders."""
LOW_LOAD_RIVALS = tuple(name for name in AMPLE_RIVALS if name != "default")
"""Where hardly anything waits, vLLM's own order, for which the engine has to run, is like the artifact's."""
PRESSURE_REQUESTS = 1200
WAYS = ("recompute", "swap", "cost")
DRAWN = (OURS, *RIVALS, WAITING, BOUND)


@dataclass(frozen=True, slots=True)
class Case:
    """One workload at one load."""

    name: str
    workload: str
    qps: float
    delay_multiplier: float = 1.0
    kv_tokens: int | None = None
    rivals: Sequence[str] = RIVALS

    @property
    def pressure(self) -> bool:
        """Whether memory is short, so that the kind of preemption matters."""
        return self.delay_multiplier > 1


CASES = (
    *(Case(f"crawler {qps:g}/s", "crawler", qps, rivals=LOW_LOAD_RIVALS) for qps in (0.5, 1.0, 2.0)),
    Case("crawler 4/s", "crawler", 4.0, rivals=AMPLE_RIVALS),
    Case("crawler pressure", "crawler", 4.0, 10.0),
    *(Case(f"anns {qps:g}/s", "anns", qps, rivals=LOW_LOAD_RIVALS) for qps in (0.25, 0.5, 1.0)),
    Case("anns 2/s", "anns", 2.0, rivals=AMPLE_RIVALS),
    Case("anns pressure", "anns", 2.0, 30.0, ANNS_PRESSURE_KV_TOKENS),
)
"""The loads of the published evaluation."""


class PoliciesBench:
    name = "policies"
    help = "our policies beside the paper's on its workloads, with the least time that is possible"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--seeds", type=at_least_one, default=5, metavar="N", help="arrival seeds (default: 5)")
        parser.add_argument("--requests", type=at_least_one, metavar="N", help="at most (default: as published)")
        parser.add_argument(
            "--pressure-requests",
            type=at_least_one,
            default=PRESSURE_REQUESTS,
            metavar="N",
            help=f"at most, where memory is short and the engine has to run (default: {PRESSURE_REQUESTS})",
        )
        parser.add_argument("--preemption", default="cost", choices=WAYS, help="under pressure (default: cost)")
        parser.add_argument("--policies", nargs="+", metavar="P", help="default: auto and the paper's")
        parser.add_argument("--cases", nargs="+", metavar="NAME", help=f"default: {', '.join(c.name for c in CASES)}")
        parser.add_argument("--hardware", default="h200-tp2", choices=sorted(HARDWARE), help="default: h200-tp2")
        add_run_arguments(parser)

    def run(self, args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
        check_vllm_can_load()
        cases = [case for case in CASES if args.cases is None or case.name in args.cases]
        unknown = sorted(set(args.cases or ()) - {case.name for case in CASES})
        if unknown:
            raise Unavailable(f"no case is called {', '.join(unknown)}; there are {', '.join(c.name for c in CASES)}")
        kept = kept_runs(args, progress)
        runs = {case.name: run_case(case, args, kept) for case in cases}
        ways = {case.name: run_ways(case, args, kept) for case in cases if case.pressure}
        return make_report(runs, args.seeds, args.preemption, ways, kept.notes())


def run_case(case: Case, args: argparse.Namespace, kept: KeptRuns) -> dict[str, Runs]:
    """Every policy on the same streams, seed by seed."""
    from stream2llm_bench.simulating.peers import registered
    from stream2llm_pod.scheduling.policies import POLICIES

    hardware = find_hardware(args.hardware)
    policies = args.policies or (OURS, *case.rivals)
    runs: dict[str, Runs] = {name: Runs() for name in (*policies, WAITING, BOUND)}
    with registered():
        known = (*POLICIES, *ARTIFACT)
        unknown = sorted(set(policies) - set(known))
        if unknown:
            raise Unavailable(f"policy {', '.join(unknown)} is not known; choose from {', '.join(known)}")
        for work in works(case, args):
            preemption = args.preemption if case.pressure else "recompute"
            for name in (*policies, WAITING):
                outcome = kept.run(
                    work,
                    _setting(
                        case, hardware, "default" if name == WAITING else name, preemption, streaming=name != WAITING
                    ),
                )
                runs[name].add(outcome.ttft_s, outcome.completion_s)
            streams = kept.streams(work)
            least_s = [lower_bound_s(stream, hardware, BUDGETS[case.workload]) for stream in streams]
            ends_s = [stream.starts_s + stream.duration_s + s for stream, s in zip(streams, least_s, strict=True)]
            runs[BOUND].add(least_s, max(ends_s))
    return runs


def run_ways(case: Case, args: argparse.Namespace, kept: KeptRuns) -> dict[str, Runs]:
    """`auto` with each kind of preemption."""
    runs = {way: Runs() for way in WAYS}
    for work in works(case, args):
        for way, own in runs.items():
            outcome = kept.run(work, _setting(case, find_hardware(args.hardware), OURS, way))
            own.add(outcome.ttft_s, outcome.completion_s)
    return runs


def works(case: Case, args: argparse.Namespace) -> list[Work]:
    """One for each seed."""
    count = at_most(case.workload, args.pressure_requests if case.pressure else args.requests)
    return [
        Work(case.workload, case.qps, count, case.delay_multiplier, FIRST_SEED + number) for number in range(args.seeds)
    ]


def _setting(case: Case, hardware: Hardware, policy: str, preemption: str, *, streaming: bool = True) -> Setting:
    from stream2llm_bench.simulating.engine import Setting

    return Setting(
        hardware,
        policy=policy,
        preemption=preemption,
        streaming=streaming,
        budget_tokens=BUDGETS[case.workload],
        kv_tokens=case.kv_tokens,
    )


def make_report(
    runs: Mapping[str, Mapping[str, Runs]],
    seeds: int,
    preemption: str,
    ways: Mapping[str, Mapping[str, Runs]],
    notes: Sequence[str] = (),
) -> Report:
    """`verdicts` holds for each of our policies, case by case, its times ÷ those of the best rival; `preemption_cases`
    those of preempting by cost ÷ the better of always recomputing and always swapping."""
    figures: dict[str, Any] = {"seeds": seeds, "preemption": preemption, "cases": {}}
    rows: list[Sequence[str]] = []
    verdict_rows: list[Sequence[str]] = []
    for case, of_case in runs.items():
        verdict = judge(OURS, of_case) if OURS in of_case else None
        figures["cases"][case] = {
            "policies": {name: own.figures() for name, own in of_case.items()},
            "verdicts": {} if verdict is None else {OURS: verdict.figures()},
        }
        for name, own in of_case.items():
            shown = [f"{own.mean_ms(percentile):,.0f}" for percentile in PERCENTILES]
            bound = [f"{own.mean_ms(p) / of_case[BOUND].mean_ms(p):.2f}" for p in PERCENTILES]
            rows.append((case, name, *shown, f"{max(own.longest_ms):,.0f}", " / ".join(bound)))
        if verdict is not None:
            ratios = [f"{verdict.against_best[p]:.3f} ({verdict.best[p]})" for p in PERCENTILES]
            good = "yes" if verdict.at_least_as_good else "no"
            longest = max(of_case[OURS].longest_ms) / min(
                max(own.longest_ms) for name, own in of_case.items() if name in RIVALS
            )
            verdict_rows.append((case, *ratios, f"{verdict.completion_against_best:.4f}", f"{longest:.2f}", good))
    tables = [
        Table(
            f"Time to first token, ms: means over {seeds} arrival seeds; the longest is of all",
            ("case", "policy", *PERCENTILES, "longest", "times the lower bound"),
            rows,
        ),
        Table(
            f"{OURS} ÷ the best rival at each percentile (below 1: {OURS} is faster), and its longest wait ÷ the "
            "shortest longest wait of any",
            ("case", *PERCENTILES, "completion", "longest", "within 3 %"),
            verdict_rows,
        ),
    ]
    if ways:
        compared = {case: judge("cost", of_case, ("recompute", "swap")) for case, of_case in ways.items()}
        figures["preemption_cases"] = {
            case: {
                "ways": {way: own.figures() for way, own in ways[case].items()},
                "cost_against_better": verdict.figures(),
            }
            for case, verdict in compared.items()
        }
        tables.append(_preemption_table(ways, compared))
    return Report(PoliciesBench.name, figures, tables, lambda path: draw(runs, path), list(notes))


def _preemption_table(ways: Mapping[str, Mapping[str, Runs]], compared: Mapping[str, Verdict]) -> Table:
    rows: list[Sequence[str]] = []
    for case, of_case in ways.items():
        for way, own in of_case.items():
            ratios = [compared[case].against_best[p] for p in PERCENTILES]
            against = " / ".join(f"{ratio:.3f}" for ratio in ratios) if way == "cost" else ""
            rows.append((case, way, *(f"{own.mean_ms(p):,.0f}" for p in PERCENTILES), against))
    columns = ("case", "preemption", *PERCENTILES, "cost ÷ the better of the two")
    return Table(f"{OURS} with each kind of preemption, ms", columns, rows)


def draw(runs: Mapping[str, Mapping[str, Runs]], path: Path) -> None:
    """Every percentile of every policy, a group a case. The artifact's schedulers are hatched."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ran = dict.fromkeys(name for of_case in runs.values() for name in of_case)
    names = sorted(ran, key=lambda name: DRAWN.index(name) if name in DRAWN else len(DRAWN))
    orders = {name: order_of(name) for name in names}
    colours = {order: f"C{i}" for i, order in enumerate(dict.fromkeys(orders.values()))}
    figure, panels = pyplot.subplots(1, len(PERCENTILES), figsize=(5 * len(PERCENTILES), 4.6), squeeze=False)
    width = 0.85 / len(names)
    for axes, percentile in zip(panels[0], PERCENTILES, strict=True):
        for i, name in enumerate(names):
            places = [j + i * width for j, of_case in enumerate(runs.values()) if name in of_case]
            heights = [of_case[name].mean_ms(percentile) for of_case in runs.values() if name in of_case]
            axes.bar(
                *(places, heights, width),
                label=name,
                color=colours[orders[name]],
                hatch="////" if name in ARTIFACT else None,
                edgecolor="white",
                linewidth=0,
            )
        axes.set_xticks([j + 0.4 for j in range(len(runs))], list(runs), rotation=30, ha="right", fontsize=8)
        axes.set_yscale("log")
        axes.grid(axis="y", alpha=0.3)
        axes.set_title(f"{percentile}, ms")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="lower center", ncol=7, fontsize=8)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


BENCH = PoliciesBench()
