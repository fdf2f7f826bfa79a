"""The comparison and its report."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stream2llm_bench.failing import Unavailable
from stream2llm_bench.options import at_least_one, seed
from stream2llm_bench.reporting import Report, Table
from stream2llm_bench.requiring import check_vllm_can_load
from stream2llm_bench.simulating.hardware import BUDGETS, find_hardware
from stream2llm_bench.simulating.keeping import Work, at_most, kept_runs
from stream2llm_bench.simulating.keeping import add_arguments as add_run_arguments
from stream2llm_bench.simulating.outcome import Outcome
from stream2llm_bench.workloads import anns

PERCENTILES = (50, 95, 99)
OURS, WAITING, SESSIONS = "Stream2LLM, auto", "stock vLLM, waiting", "stock vLLM, streaming input"
NOTHING_KEPT = anns.Assumptions(kept_exponent=1000.0)
"""An update keeps 0.1 % of the prompt on average."""
MEMORY_TOKENS = 600_000
"""Half of the memory that the paper's pressure is simulated with."""


@dataclass(frozen=True, slots=True)
class Case:
    """One workload at one load. `qps` and multiplier as in `Work`."""

    name: str
    workload: str
    qps: float
    delay_multiplier: float = 1.0
    assumptions: anns.Assumptions | None = None
    kv_tokens: int | None = None


CASES = (
    Case("crawler", "crawler", 2.0),
    Case("very fast retrieval", "crawler", 2.0, 0.01),
    Case("more work than time", "crawler", 6.0),
    Case("memory is short", "crawler", 4.0, 10.0, kv_tokens=MEMORY_TOKENS),
    Case("search", "anns", 1.0),
    Case("updates keep nothing", "anns", 1.0, assumptions=NOTHING_KEPT),
)
"""In the second, retrieval takes 0.1 s; in the third, requests come faster than they can be computed."""


class PeersBench:
    name = "peers"
    help = "streaming beside stock vLLM, waiting and with its own streaming input, also where it is worth nothing"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--requests", type=at_least_one, default=600, metavar="N", help="at most (default: 600)")
        parser.add_argument("--seed", type=seed, default=42, metavar="S", help="default: 42")
        parser.add_argument("--cases", nargs="+", metavar="NAME", help=f"default: {', '.join(c.name for c in CASES)}")
        add_run_arguments(parser)

    def run(self, args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
        check_vllm_can_load()
        from stream2llm_bench.simulating.engine import STOCK, Setting

        unknown = sorted(set(args.cases or ()) - {case.name for case in CASES})
        if unknown:
            raise Unavailable(f"no case is called {', '.join(unknown)}; there are {', '.join(c.name for c in CASES)}")
        kept = kept_runs(args, progress)
        outcomes: dict[str, dict[str, Outcome]] = {}
        for case in CASES:
            if args.cases is not None and case.name not in args.cases:
                continue
            work = Work(
                case.workload,
                case.qps,
                at_most(case.workload, args.requests),
                case.delay_multiplier,
                args.seed,
                case.assumptions,
            )
            outcomes[case.name] = {}
            for way, policy, streaming in ((OURS, "auto", True), (WAITING, STOCK, False), (SESSIONS, STOCK, True)):
                if way == SESSIONS and case.workload == anns.NAME:
                    # It has no way to replace a prompt.
                    continue
                setting = Setting(
                    find_hardware("h200-tp2"),
                    policy=policy,
                    streaming=streaming,
                    budget_tokens=BUDGETS[case.workload],
                    kv_tokens=case.kv_tokens,
                )
                outcomes[case.name][way] = kept.run(work, setting)
        return make_report(outcomes, kept.notes())


def make_report(outcomes: Mapping[str, Mapping[str, Outcome]], notes: Sequence[str] = ()) -> Report:
    """`ratio_vs_waiting` is the time of stock vLLM with whole prompts ÷ that of the way: above 1 the way is faster;
    None where streams are left unanswered."""
    cases: dict[str, Any] = {}
    rows = []
    for case, of_case in outcomes.items():
        waiting = _times_ms(of_case[WAITING])
        cases[case] = {}
        for way, outcome in of_case.items():
            own = _times_ms(outcome)
            ratios = [
                before / after if math.isfinite(after) else None for before, after in zip(waiting, own, strict=True)
            ]
            asker_ms = _quantile_ms(outcome.asker_s, 50)
            cases[case][way] = {
                "ttft_ms": {f"p{p}": _rounded(ms) for p, ms in zip(PERCENTILES, own, strict=True)},
                "open_to_first_token_p50_ms": _rounded(asker_ms),
                "ratio_vs_waiting": {f"p{p}": _rounded(ratio, 3) for p, ratio in zip(PERCENTILES, ratios, strict=True)},
                "requests": len(outcome.ttft_s),
                "unanswered": outcome.unanswered,
            }
            shown = [f"{ms:,.0f}" if math.isfinite(ms) else "never" for ms in own]
            ratio = " / ".join("-" if value is None else f"{value:.2f}" for value in ratios)
            asker = f"{asker_ms / 1e3:,.1f}" if math.isfinite(asker_ms) else "never"
            rows.append((case, way, *shown, asker, ratio, str(outcome.unanswered)))
    return Report(
        PeersBench.name,
        {"cases": cases},
        [
            Table(
                "Time to first token after the last message, ms; what the asker waits, s; waiting ÷ each way",
                ("case", "way", "p50", "p95", "p99", "asker p50", "ratio at p50 / p95 / p99", "unanswered"),
                rows,
            )
        ],
        lambda path: draw(outcomes, path),
        list(notes),
    )


def _times_ms(outcome: Outcome) -> list[float]:
    return [_quantile_ms(outcome.ttft_s, percent) for percent in PERCENTILES]


def _quantile_ms(seconds: Sequence[float], percent: float) -> float:
    """Infinite if the streams that are left unanswered reach down to it."""
    return 1e3 * float(np.percentile(seconds, percent, method="higher"))


def _rounded(value: float | None, digits: int = 2) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, digits)


def draw(outcomes: Mapping[str, Mapping[str, Outcome]], path: Path) -> None:
    """How the times are distributed: a panel a case, a line a way."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = 3
    lines = -(-len(outcomes) // columns)
    figure, panels = pyplot.subplots(lines, columns, figsize=(11, 3.1 * lines), squeeze=False)
    for axes in panels.flat[len(outcomes) :]:
        axes.set_visible(False)
    for axes, (case, of_case) in zip(panels.flat, outcomes.items(), strict=False):
        for way, outcome in of_case.items():
            times = sorted(outcome.ttft_s)
            answered = [value for value in times if math.isfinite(value)]
            axes.plot(answered, (np.arange(len(answered)) + 1) / len(times), label=way)
        axes.set_xscale("log")
        axes.set_title(case, fontsize=9)
        axes.set_ylim(0, 1)
        axes.grid(alpha=0.3)
    panels[0][0].legend(fontsize=7)
    for axes in panels[-1]:
        axes.set_xlabel("s after the last message")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


BENCH = PeersBench()
