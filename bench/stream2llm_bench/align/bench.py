"""The comparison and its report."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
CALIBRATION_STREAMS = 5
CALIBRATION_SEED_OFFSET = 1000
REPEATED = "the real engine once more"


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


@dataclass(frozen=True, slots=True)
class Pair:
    """Times to first token of the same streams: real and simulated, in seconds."""

    way: str
    real_s: Sequence[float]
    simulated_s: Sequence[float]
    step_error: float | None = None
    """Median over the real steps: predicted ÷ measured, less 1."""

    @property
    def mape(self) -> float:
        """Mean absolute percentage error, as a share."""
        return statistics.fmean(abs(b / a - 1) for a, b in zip(self.real_s, self.simulated_s, strict=True))

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
        parser.add_argument("--seed", type=seed, default=42, metavar="S", help="default: 42")

    def run(self, args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
        check_vllm_can_load()
        from stream2llm_bench.align.real import BUDGET_TOKENS, RealEngine
        from stream2llm_bench.demo.model import ensure_model

        streams = draw_streams(args.requests, args.qps, args.seed)
        calibrating = draw_streams(CALIBRATION_STREAMS, args.qps, args.seed + CALIBRATION_SEED_OFFSET)
        progress("loading SmolLM2")
        real = RealEngine(str(ensure_model(progress)))
        try:
            progress("timing steps")
            real.run(calibrating[:1], "fcfs", streaming=False, skips_idle=True)
            # The machine's speed drifts: what lies between two calibrations is predicted by both.
            calibrated = [_calibrate(real, calibrating)]
            outcomes, measured, step_times = {}, {}, {}
            for way in WAYS:
                progress(f"the real engine: {way.name}, about {streams[-1].starts_s:.0f} s")
                outcomes[way.name], measured[way.name] = real.run(streams, way.policy, streaming=way.streaming)
                progress("timing steps again")
                calibrated.append(_calibrate(real, calibrating))
                step_times[way.name] = fit([*calibrated[-2], *calibrated[-1]])
            first = WAYS[0]
            progress(f"{REPEATED}: {first.name}")
            repeated, _ = real.run(streams, first.policy, streaming=first.streaming)
            kv_tokens = real.kv_tokens
        finally:
            real.close()
        progress("simulating")
        simulated = _simulate(streams, step_times, BUDGET_TOKENS, kv_tokens)
        pairs = [
            Pair(
                way.name,
                outcomes[way.name].ttft_s,
                simulated[way.name].ttft_s,
                statistics.median(step_times[way.name].errors(measured[way.name])),
            )
            for way in WAYS
        ]
        repeat = Pair(REPEATED, outcomes[first.name].ttft_s, repeated.ttft_s)
        return make_report(pairs, repeat, calibrated)


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
    streams: Sequence[Stream], step_times: Mapping[str, StepTime], budget_tokens: int, kv_tokens: int
) -> dict[str, Outcome]:
    from stream2llm_bench.simulating.engine import Setting, SimulatedEngine

    engine = SimulatedEngine()
    outcomes = {}
    for way in WAYS:
        time = step_times[way.name]
        hardware = Hardware("this machine", time.step_ms, time.token_us, time.pair_ns, kv_tokens, 0.5, 1.0, kv_tokens)
        setting = Setting(hardware, policy=way.policy, streaming=way.streaming, budget_tokens=budget_tokens)
        outcomes[way.name] = engine.run(streams, setting)
    return outcomes


def make_report(pairs: Sequence[Pair], repeat: Pair, calibrated: Sequence[Sequence[Step]]) -> Report:
    """`mape_ttft` is the mean over the ways, as a share; `mape_repeat` is that of the real engine with itself.

    calibrated: the steps of each calibration, in their order.
    """
    if not pairs:
        raise Unavailable("nothing was compared")
    mape = statistics.fmean(pair.mape for pair in pairs)
    steps = [step for calibration in calibrated for step in calibration]
    step_time = fit(steps)
    speeds = [statistics.median(step.ms / step_time.ms(step) for step in calibration) for calibration in calibrated]
    drift = max(speeds) / min(speeds)
    step_errors = [abs(error) for error in step_time.errors(steps)]
    figures: dict[str, Any] = {
        "mape_ttft": round(mape, 4),
        "mape_repeat": round(repeat.mape, 4),
        "ways": {
            pair.way: {
                "mape": round(pair.mape, 4),
                "bias": round(pair.bias, 4),
                "step_error": None if pair.step_error is None else round(pair.step_error, 4),
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
            *(pair.way, *_seconds(pair.real_s), *_seconds(pair.simulated_s), f"{pair.mape:.1%}", f"{pair.bias:+.1%}"),
            "" if pair.step_error is None else f"{pair.step_error:+.1%}",
        )
        for pair in (*pairs, repeat)
    ]
    return Report(
        AlignBench.name,
        figures,
        [
            Table(
                f"Time to first token of {len(repeat.real_s)} streams, seconds: real, simulated; errors by stream",
                ("way", "real p50", "p95", "max", "sim. p50", "p95", "max", "MAPE", "bias", "of a step"),
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
        lambda path: draw(pairs, repeat, path),
        [
            f"MAPE over all ways: {mape:.1%}. The last line compares the real engine with itself: what no simulator "
            "can foresee. Of a step: the median error of its predicted time. Drift: the slowest calibration ÷ the "
            "fastest."
        ],
    )


def _seconds(values: Sequence[float]) -> tuple[str, str, str]:
    import numpy as np

    return f"{np.percentile(values, 50):.2f}", f"{np.percentile(values, 95):.2f}", f"{max(values):.2f}"


def draw(pairs: Sequence[Pair], repeat: Pair, path: Path) -> None:
    """Simulated over real, a dot a stream; beside it the real engine twice."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [*pairs, repeat]
    values = [value for pair in shown for value in (*pair.real_s, *pair.simulated_s)]
    low, high = 10 ** math.floor(math.log10(min(values))), 1.3 * max(values)
    figure, panels = pyplot.subplots(1, len(shown), figsize=(3.4 * len(shown), 3.6), sharey=True)
    for axes, pair in zip(panels, shown, strict=True):
        axes.plot([low, high], [low, high], color="grey", lw=0.8)
        axes.fill_between([low, high], [0.8 * low, 0.8 * high], [1.2 * low, 1.2 * high], alpha=0.15)
        axes.plot(pair.real_s, pair.simulated_s, "o", ms=3)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
        axes.set_title(f"{pair.way}\n{pair.mape:.1%}", fontsize=9)
        axes.set_xlabel("real, s")
    panels[0].set_ylabel("simulated (right: real again), s")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


BENCH = AlignBench()
