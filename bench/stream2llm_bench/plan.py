"""`bench plan`: the time of one scheduling step beside stock vLLM's, on equal engine states with a simulated worker."""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stream2llm_bench.comparing import ratio_of_pairs
from stream2llm_bench.reporting import Report, Table
from stream2llm_bench.requiring import check_vllm_can_load
from stream2llm_bench.simulated_core import BLOCK_SIZE, VOCABULARY, make_core

PAPER_PHASE1_US = "15 to 16"
"""What the Stream2LLM paper (MLSys 2026) reports for its scheduling phase."""

DECODE_PROMPT_TOKENS = 32
PREFILL_PROMPT_TOKENS = 256
KV_BLOCKS = 24_000
BUDGET_TOKENS = 8192
RUNNING = 64
LONGEST_TOKENS = 8192


@dataclass(slots=True)
class Steps:
    """Milliseconds of `schedule()` in interleaved steps, at one number of requests."""

    stock_ms: list[float] = field(default_factory=list)
    ours_ms: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Measured:
    """By number of requests."""

    decoding: dict[int, Steps] = field(default_factory=dict)
    waiting: dict[int, Steps] = field(default_factory=dict)
    phase1_us: dict[int, list[float]] = field(default_factory=dict)


class Lane:
    """One scheduler with a worker of its own, stepped by hand."""

    def __init__(
        self, core: Any, scheduler_class: type[Any], *, slots: int, budget_tokens: int = BUDGET_TOKENS
    ) -> None:
        from stream2llm_pod.engine.simulation.worker import SimulatedWorker

        config = core.vllm_config
        config.scheduler_config.max_num_seqs = slots
        config.scheduler_config.max_num_batched_tokens = budget_tokens
        self._core = core
        self.scheduler: Any = scheduler_class(
            vllm_config=config,
            kv_cache_config=core.scheduler.kv_cache_config,
            structured_output_manager=core.structured_output_manager,
            block_size=BLOCK_SIZE,
            hash_block_size=BLOCK_SIZE,
            log_stats=False,
        )
        self._worker = SimulatedWorker(KV_BLOCKS, BLOCK_SIZE, VOCABULARY)

    def add(self, requests: int, prompt_tokens: int, *, streams: bool = False) -> None:
        """Requests with prompts of their own; as open streams if asked."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        from stream2llm_pod.engine.protocol import Op, OpKind

        for i in range(requests):
            request = EngineCoreRequest(
                request_id=f"request-{i}",
                external_req_id=f"request-{i}",
                prompt_token_ids=[3 + (i * 7919 + position) % 30_000 for position in range(prompt_tokens)],
                mm_features=None,
                sampling_params=SamplingParams(
                    temperature=0,
                    max_tokens=4096,
                    ignore_eos=True,
                    extra_args=Op(OpKind.OPEN).to_extra_args() if streams else None,
                ),
                pooling_params=None,
                arrival_time=float(i),
                lora_request=None,
                cache_salt=None,
                data_parallel_rank=None,
            )
            self.scheduler.add_request(self._core.preprocess_add_request(request)[0])

    def step(self) -> float:
        """One whole step; returns the milliseconds that `schedule()` took."""
        from vllm.v1.outputs import ModelRunnerOutput

        started = time.perf_counter()
        scheduled = self.scheduler.schedule()
        duration_ms = 1e3 * (time.perf_counter() - started)
        sampled = self._worker.execute(scheduled)
        output = ModelRunnerOutput(
            req_ids=list(sampled),
            req_id_to_index={req_id: i for i, req_id in enumerate(sampled)},
            sampled_token_ids=list(sampled.values()),
        )
        self.scheduler.update_from_output(scheduled, output)
        return duration_ms

    @property
    def decoding(self) -> int:
        return sum(request.num_output_tokens > 0 for request in self.scheduler.running)


class PlanBench:
    name = "plan"
    help = "time of schedule() beside stock vLLM's on equal states; no model runs"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--requests", type=int, nargs="+", default=[50, 500, 2000], metavar="N", help="default: 50 500 2000"
        )
        parser.add_argument("--steps", type=int, default=31, help="interleaved pairs of steps (default: 31)")

    def run(self, args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
        if min(args.requests) < 1 or args.steps < 1:
            raise ValueError("--requests and --steps must be at least 1")
        check_vllm_can_load()
        progress("starting vLLM's engine core without a model")
        from stream2llm_pod.engine.configuring import EngineSettings

        core, _ = make_core(
            EngineSettings(),
            longest_tokens=LONGEST_TOKENS,
            budget_tokens=BUDGET_TOKENS,
            slots=RUNNING,
            blocks=KV_BLOCKS,
        )
        measured = Measured()
        for requests in args.requests:
            progress(f"{requests} requests")
            measured.decoding[requests] = measure_steps(core, requests, requests, args.steps)
            measured.waiting[requests] = measure_steps(core, requests, RUNNING, args.steps)
            measured.phase1_us[requests] = measure_phase1(core, requests, args.steps)
        return make_report(measured)


def measure_steps(core: Any, requests: int, slots: int, steps: int) -> Steps:
    """As many requests decode as there are slots, the rest wait; both schedulers in turn."""
    from vllm.v1.core.sched.scheduler import Scheduler

    from stream2llm_pod.engine.scheduler import StreamScheduler

    slots = min(slots, requests)
    stock, ours = Lane(core, Scheduler, slots=slots), Lane(core, StreamScheduler, slots=slots)
    for lane in (stock, ours):
        lane.add(requests, DECODE_PROMPT_TOKENS)
        while lane.decoding < slots:
            lane.step()
    for _ in range(3):
        stock.step()
        ours.step()
    measured = Steps()
    with _no_collections():
        for i in range(steps):
            # Which one goes first alternates, so that neither always meets the warmer caches.
            for lane in (stock, ours) if i % 2 else (ours, stock):
                (measured.stock_ms if lane is stock else measured.ours_ms).append(lane.step())
    return measured


def measure_phase1(core: Any, requests: int, steps: int) -> list[float]:
    """Microseconds of ranking and planning in steps that have open streams to choose from."""
    from stream2llm_pod.engine.scheduler import StreamScheduler

    budget_tokens = max(64, requests * PREFILL_PROMPT_TOKENS // (2 * (steps + 3)))
    lane = Lane(core, StreamScheduler, slots=requests, budget_tokens=min(budget_tokens, BUDGET_TOKENS))
    lane.add(requests, PREFILL_PROMPT_TOKENS, streams=True)
    spent_s = 0.0

    def timed(act: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal spent_s
            started = time.perf_counter()
            result = act(*args, **kwargs)
            spent_s += time.perf_counter() - started
            return result

        return wrapped

    lane.scheduler._rerank, lane.scheduler._plan = timed(lane.scheduler._rerank), timed(lane.scheduler._plan)
    for _ in range(3):
        lane.step()
    durations_us = []
    with _no_collections():
        for _ in range(steps):
            spent_s = 0.0
            lane.step()
            durations_us.append(1e6 * spent_s)
    return durations_us


@contextmanager
def _no_collections() -> Iterator[None]:
    """Keeps the garbage collector out of the measurement."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def make_report(measured: Measured) -> Report:
    """Figures, tables and plot of what was measured."""
    schedule_ratio, extra_ms, phase1_us, spread = {}, {}, {}, {}
    rows, phase1_rows = [], []
    for requests, decoding in measured.decoding.items():
        key = str(requests)
        ratio = ratio_of_pairs(decoding.ours_ms, decoding.stock_ms)
        waiting = measured.waiting[requests]
        extras = [ours - stock for ours, stock in zip(waiting.ours_ms, waiting.stock_ms, strict=True)]
        durations_us = measured.phase1_us[requests]
        schedule_ratio[key] = round(ratio.median, 3)
        extra_ms[key] = round(statistics.median(extras), 4)
        phase1_us[key] = round(statistics.median(durations_us), 1)
        spread[key] = {
            "schedule_ratio": _quartiles([a / b for a, b in zip(decoding.ours_ms, decoding.stock_ms, strict=True)]),
            "extra_ms": _quartiles(extras),
            "phase1_us": _quartiles(durations_us),
        }
        rows.append((key, "all decoding", *_pair(decoding), f"{ratio.median:.2f} times"))
        rows.append((key, f"{min(RUNNING, requests)} decoding", *_pair(waiting), f"{extra_ms[key]:+.3f} ms"))
        low, high = _quartiles(durations_us)
        phase1_rows.append((key, f"{phase1_us[key]:.1f} µs", f"{low:.1f} to {high:.1f}"))
    return Report(
        "plan",
        {"schedule_ratio": schedule_ratio, "extra_ms": extra_ms, "phase1_us": phase1_us, "quartiles": spread},
        [
            Table("Time of schedule(), medians", ("requests", "state", "stock", "ours", "difference"), rows),
            Table(
                f"Phase 1 (ranking and planning); the paper reports {PAPER_PHASE1_US} µs",
                ("open streams", "median", "quartiles"),
                phase1_rows,
            ),
        ],
        lambda path: draw(measured, path),
        ["Both schedulers step in turn on states of their own that are equal. No model runs."],
    )


def _pair(steps: Steps) -> tuple[str, str]:
    return f"{statistics.median(steps.stock_ms):.3f} ms", f"{statistics.median(steps.ours_ms):.3f} ms"


def _quartiles(values: Sequence[float]) -> list[float]:
    if len(values) < 2:
        return [values[0], values[0]]
    low, _, high = statistics.quantiles(values, n=4)
    return [round(low, 4), round(high, 4)]


def draw(measured: Measured, path: Path) -> None:
    """Time of a step by number of requests, both states, both schedulers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    states = (("all decoding", measured.decoding), (f"{RUNNING} decoding, the rest waiting", measured.waiting))
    for axes, (title, by_requests) in zip(panels, states, strict=True):
        counts = list(by_requests)
        for label in ("stock", "ours"):
            medians = [statistics.median(getattr(by_requests[count], f"{label}_ms")) for count in counts]
            axes.plot(counts, medians, marker="o", label=label)
        axes.set_title(title)
        axes.set_xlabel("requests")
        axes.set_xscale("log")
        axes.set_yscale("log")
    panels[0].set_ylabel("schedule(), ms")
    panels[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


BENCH = PlanBench()
