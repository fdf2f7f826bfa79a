"""The comparison and its report."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream2llm_bench.align.fitting import Step, StepTime, fit
from stream2llm_bench.failing import Unavailable
from stream2llm_bench.options import above_zero, at_least_one, seed
from stream2llm_bench.reporting import Report, Table
from stream2llm_bench.requiring import check_vllm_can_load
from stream2llm_bench.simulating.hardware import Hardware
from stream2llm_bench.workloads.scenarios import Part, Scenario
from stream2llm_bench.workloads.streams import Stream

if TYPE_CHECKING:
    from stream2llm_bench.align.real import RealEngine
    from stream2llm_bench.simulating.outcome import Outcome

TOKENS_DIVISOR, DELAY_MULTIPLIER = 20, 0.5
"""SmolLM2 on a processor computes some hundred tokens a second: prompts are so much shorter than published, and so is
the retrieval."""
DEFAULT_REQUESTS, DEFAULT_QPS = 24, 0.2
"""The processor is idle most of the time. Nearer to saturation queues multiply the error of a step's time: with prompts
twice as long, 7 % become up to 60 %."""
DEFAULT_ROUNDS = 3
"""Each way is served so often, and a stream's time is the median: one thread of a shared machine has been seen to run
at speeds 1.5 times apart within 20 s."""
CALIBRATION_STREAMS = 5
CALIBRATION_SEED_OFFSET = 1000


@dataclass(frozen=True, slots=True)
class Way:
    """One way to serve the streams."""

    name: str
    policy: str
    streaming: bool


WAYS = (
    Way("auto, streaming", "auto", True),
    Way("fcfs, streaming", "fcfs", True),
    Way("waiting", "default", False),
)


def mape(real_s: Sequence[float], other_s: Sequence[float]) -> float:
    """Mean absolute percentage error, as a share."""
    return statistics.fmean(abs(b / a - 1) for a, b in zip(real_s, other_s, strict=True))


@dataclass(frozen=True, slots=True)
class Pair:
    """Times to first token of the same streams, in seconds: real and simulated, a row for each round."""

    way: str
    real_rounds_s: Sequence[Sequence[float]]
    simulated_rounds_s: Sequence[Sequence[float]]
    step_error: float
    """Median over the real steps: predicted ÷ measured, less 1."""

    @property
    def real_s(self) -> list[float]:
        """Of each stream the median of its rounds."""
        return [statistics.median(times) for times in zip(*self.real_rounds_s, strict=True)]

    @property
    def simulated_s(self) -> list[float]:
        return [statistics.median(times) for times in zip(*self.simulated_rounds_s, strict=True)]

    @property
    def mape(self) -> float:
        return mape(self.real_s, self.simulated_s)

    @property
    def mape_of_one_round(self) -> float:
        return statistics.fmean(map(mape, self.real_rounds_s, self.simulated_rounds_s))

    @property
    def mape_real(self) -> float | None:
        """Of each round of the real engine against its next; None for a single one."""
        if len(self.real_rounds_s) < 2:
            return None
        return statistics.fmean(mape(a, b) for a, b in pairwise(self.real_rounds_s))

    @property
    def bias(self) -> float:
        """Sum of the simulated times ÷ sum of the real ones, less 1."""
        return sum(self.simulated_s) / sum(self.real_s) - 1


class AlignBench:
    name = "align"
    help = "the same streams on the real engine and in the simulator: by how much times to first token differ"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--requests",
            type=at_least_one,
            default=DEFAULT_REQUESTS,
            metavar="N",
            help=f"streams (default: {DEFAULT_REQUESTS})",
        )
        parser.add_argument(
            "--qps", type=above_zero, default=DEFAULT_QPS, metavar="Q", help=f"retrievals a second ({DEFAULT_QPS})"
        )
        parser.add_argument(
            "--rounds",
            type=at_least_one,
            default=DEFAULT_ROUNDS,
            metavar="N",
            help=f"times that each way is served (default: {DEFAULT_ROUNDS})",
        )
        parser.add_argument("--seed", type=seed, default=42, metavar="S", help="default: 42")

    def run(self, args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
        check_vllm_can_load()
        from stream2llm_bench.align.real import BUDGET_TOKENS, RealEngine
        from stream2llm_bench.demo.model import ensure_model

        streams = draw_streams(args.requests, args.qps, args.seed)
        calibrating = draw_streams(CALIBRATION_STREAMS, args.qps, args.seed + CALIBRATION_SEED_OFFSET)
        progress("loading SmolLM2")
        real = RealEngine(str(ensure_model(progress)))
        real_s: dict[str, list[Sequence[float]]] = {way.name: [] for way in WAYS}
        measured: list[dict[str, list[Step]]] = []
        try:
            progress("timing steps")
            real.run(calibrating[:1], "fcfs", streaming=False, skips_idle=True)
            # The machine's speed drifts: what lies between two calibrations is predicted by both.
            calibrated = [_calibrate(real, calibrating)]
            for number in range(1, args.rounds + 1):
                measured.append({})
                for way in WAYS:
                    progress(
                        f"round {number} of {args.rounds}, the real engine: {way.name}, "
                        f"about {streams[-1].starts_s:.0f} s"
                    )
                    outcome, measured[-1][way.name] = real.run(streams, way.policy, streaming=way.streaming)
                    real_s[way.name].append(outcome.ttft_s)
                progress("timing steps again")
                calibrated.append(_calibrate(real, calibrating))
            kv_tokens = real.kv_tokens
        finally:
            real.close()
        progress("simulating")
        step_times = [fit([*before, *after]) for before, after in pairwise(calibrated)]
        simulated = _simulate(streams, step_times, BUDGET_TOKENS, kv_tokens)
        pairs = [
            Pair(
                way.name,
                real_s[way.name],
                [outcomes[way.name].ttft_s for outcomes in simulated],
                statistics.median(
                    error
                    for time, steps in zip(step_times, measured, strict=True)
                    for error in time.errors(steps[way.name])
                ),
            )
            for way in WAYS
        ]
        return make_report(pairs, calibrated)


def draw_streams(count: int, qps: float, of_seed: int) -> list[Stream]:
    """Half of them crawls, half searches, scaled to a small model on a processor."""
    parts = (Part("crawler", delay_multiplier=DELAY_MULTIPLIER), Part("anns", delay_multiplier=DELAY_MULTIPLIER))
    drawn = Scenario("align", qps, count, parts).draw(of_seed)
    return [stream.scaled(1 / TOKENS_DIVISOR) for stream in drawn]


def _calibrate(real: RealEngine, streams: Sequence[Stream]) -> list[Step]:
    """Steps of streams other than those compared, of both modes."""
    steps = []
    for streaming in (True, False):
        _, timed = real.run(streams, "fcfs", streaming=streaming, skips_idle=True)
        steps += timed
    return steps


def _simulate(
    streams: Sequence[Stream], step_times: Sequence[StepTime], budget_tokens: int, kv_tokens: int
) -> list[dict[str, Outcome]]:
    """Way → outcome, for the step times of each round."""
    from stream2llm_bench.simulating.engine import Setting, SimulatedEngine

    engine = SimulatedEngine()
    rounds = []
    for time in step_times:
        hardware = Hardware("this machine", time.step_ms, time.token_us, time.pair_ns, kv_tokens, 0.5, 1.0, kv_tokens)
        outcomes = {}
        for way in WAYS:
            setting = Setting(hardware, policy=way.policy, streaming=way.streaming, budget_tokens=budget_tokens)
            outcomes[way.name] = engine.run(streams, setting)
        rounds.append(outcomes)
    return rounds


def make_report(pairs: Sequence[Pair], calibrated: Sequence[Sequence[Step]]) -> Report:
    """`mape_ttft` is the mean over the ways, as a share; `mape_repeat` that of the real engine with itself.

    calibrated: the steps of each calibration, in their order.
    """
    if not pairs:
        raise Unavailable("nothing was compared")
    mape_ttft = statistics.fmean(pair.mape for pair in pairs)
    mape_of_one_round = statistics.fmean(pair.mape_of_one_round for pair in pairs)
    repeats = [pair.mape_real for pair in pairs if pair.mape_real is not None]
    mape_repeat = statistics.fmean(repeats) if repeats else None
    steps = [step for calibration in calibrated for step in calibration]
    step_time = fit(steps)
    speeds = [statistics.median(step.ms / step_time.ms(step) for step in calibration) for calibration in calibrated]
    drift = max(speeds) / min(speeds)
    step_errors = [abs(error) for error in step_time.errors(steps)]
    figures: dict[str, Any] = {
        "mape_ttft": round(mape_ttft, 4),
        "mape_of_one_round": round(mape_of_one_round, 4),
        "mape_repeat": _rounded(mape_repeat),
        "rounds": len(pairs[0].real_rounds_s),
        "ways": {
            pair.way: {
                "mape": round(pair.mape, 4),
                "bias": round(pair.bias, 4),
                "mape_of_one_round": round(pair.mape_of_one_round, 4),
                "mape_repeat": _rounded(pair.mape_real),
                "step_error": round(pair.step_error, 4),
                "requests": len(pair.real_s),
            }
            for pair in pairs
        },
        "step": {
            "step_ms": round(step_time.step_ms, 4),
            "token_us": round(step_time.token_us, 3),
            "pair_ns": round(step_time.pair_ns, 3),
            "steps": len(step_errors),
            "median_error": round(statistics.median(step_errors), 4),
        },
        "drift": round(drift, 4),
    }
    rows = [
        (
            *(pair.way, *_seconds(pair.real_s), *_seconds(pair.simulated_s), f"{pair.mape:.1%}"),
            *(f"{pair.mape_of_one_round:.1%}", "" if pair.mape_real is None else f"{pair.mape_real:.1%}"),
            *(f"{pair.bias:+.1%}", f"{pair.step_error:+.1%}"),
        )
        for pair in pairs
    ]
    return Report(
        AlignBench.name,
        figures,
        [
            Table(
                f"Time to first token of {len(pairs[0].real_s)} streams, seconds: real, simulated; errors by stream",
                (
                    *("way", "real p50", "p95", "max", "sim. p50", "p95", "max"),
                    *("MAPE", "one round", "real again", "bias", "of a step"),
                ),
                rows,
            ),
            Table(
                "A step, fitted to steps of other streams",
                ("fixed ms", "µs a token", "ns a pair", "steps", "median error", "drift"),
                [
                    (
                        f"{step_time.step_ms:.2f}",
                        f"{step_time.token_us:.0f}",
                        f"{step_time.pair_ns:.1f}",
                        str(len(step_errors)),
                        f"{statistics.median(step_errors):.1%}",
                        f"{drift:.2f}",
                    )
                ],
            ),
        ],
        lambda path: draw(pairs, path),
        [
            f"MAPE over all ways: {mape_ttft:.1%}. A stream's time is the median of its rounds; beside it the MAPE of "
            "single rounds, and of one round of the real engine against the next: what no simulator can foresee. Of a "
            "step: the median error of its predicted time. Drift: the slowest calibration ÷ the fastest."
        ],
    )


def _seconds(values: Sequence[float]) -> tuple[str, str, str]:
    import numpy as np

    return f"{np.percentile(values, 50):.2f}", f"{np.percentile(values, 95):.2f}", f"{max(values):.2f}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def draw(pairs: Sequence[Pair], path: Path) -> None:
    """Simulated over real, a dot a stream; faint, one round of the real engine over the one before."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    values = [value for pair in pairs for row in (*pair.real_rounds_s, *pair.simulated_rounds_s) for value in row]
    low, high = 10 ** math.floor(math.log10(min(values))), 1.3 * max(values)
    figure, panels = pyplot.subplots(1, len(pairs), figsize=(3.4 * len(pairs), 3.6), sharey=True, squeeze=False)
    for axes, pair in zip(panels[0], pairs, strict=True):
        axes.plot([low, high], [low, high], color="grey", lw=0.8)
        axes.fill_between([low, high], [0.8 * low, 0.8 * high], [1.2 * low, 1.2 * high], alpha=0.15)
        for before, after in pairwise(pair.real_rounds_s):
            axes.plot(before, after, ".", ms=3, color="tab:grey", alpha=0.5)
        axes.plot(pair.real_s, pair.simulated_s, "o", ms=3)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
        axes.set_title(f"{pair.way}\n{pair.mape:.1%}", fontsize=9)
        axes.set_xlabel("real, s")
    panels[0][0].set_ylabel("simulated, s (faint: real again)")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


BENCH = AlignBench()
