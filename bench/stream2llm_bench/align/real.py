"""Streams on vLLM's real engine in this process, in real time, with every step timed."""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stream2llm_bench.align.fitting import Step
from stream2llm_bench.renewing import renew_scheduler
from stream2llm_bench.simulating.outcome import Outcome
from stream2llm_bench.simulating.serving import Serving
from stream2llm_bench.workloads.streams import Stream

if TYPE_CHECKING:
    from stream2llm_pod.profiling.engine import MeasuredEngine

BUDGET_TOKENS = 256
SLOTS = 64
LONGEST_TOKENS = 4096
ARGUMENTS = (
    "--dtype=float32",
    "--enforce-eager",
    "--block-size=32",
    f"--max-model-len={LONGEST_TOKENS}",
    f"--max-num-batched-tokens={BUDGET_TOKENS}",
    f"--max-num-seqs={SLOTS}",
    # 16,000 tokens: memory is never short, which is not what is compared.
    "--kv-cache-memory-bytes=750000000",
)


class RealTime:
    """Events at their times, steps in between, on one thread. Has the methods of the simulation's `VirtualTime`."""

    def __init__(self, core: Any, on_output: Callable[[Any, float], None], *, skips_idle: bool) -> None:
        """skips_idle: while the engine has nothing to do, time jumps to the next event."""
        self._core, self._on_output, self._skips_idle = core, on_output, skips_idle
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0
        self._origin_s = time.monotonic()
        self._spans: tuple[tuple[int, int], ...] = ()
        self.steps: list[Step] = []

    def clock(self) -> float:
        return time.monotonic() - self._origin_s

    def at(self, when_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_s, self._numbers, action))
        self._numbers += 1

    def run(self) -> None:
        """Until nothing is to come and the engine has nothing to do."""
        core = self._core
        self._watch(core.scheduler)
        self._origin_s = time.monotonic()
        while self._events or core.scheduler.has_requests():
            while self._events and self._events[0][0] <= self.clock():
                heapq.heappop(self._events)[2]()
            if self._step():
                continue
            if self._events:
                rest_s = max(self._events[0][0] - self.clock(), 0.0)
                if self._skips_idle:
                    self._origin_s -= rest_s
                else:
                    time.sleep(rest_s)

    def _step(self) -> bool:
        """Whether anything was computed."""
        if not self._core.scheduler.has_requests():
            return False
        before_s = time.monotonic()
        outputs, executed = self._core.step_fn()
        self._core.post_step(executed)
        now_s = time.monotonic()
        if executed:
            self.steps.append(Step(self._spans, 1e3 * (now_s - before_s)))
        for of_client in (outputs or {}).values():
            for output in of_client.outputs:
                self._on_output(output, now_s - self._origin_s)
        return bool(executed)

    def _watch(self, scheduler: Any) -> None:
        """Remember what each step computes."""
        from stream2llm_pod.engine.simulation.timing import spans

        schedule = scheduler.schedule

        def watched(*args: Any, **kwargs: Any) -> Any:
            scheduled = schedule(*args, **kwargs)
            self._spans = tuple(spans(scheduled))
            return scheduled

        scheduler.schedule = watched


class RealEngine:
    """SmolLM2 in vLLM's engine core. Each run has a scheduler of its own."""

    def __init__(self, model: str) -> None:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        # One process, so that a step is timed without a message between processes.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        from stream2llm_pod.profiling.engine import MeasuredEngine, make_engine_config

        self._engine: MeasuredEngine = MeasuredEngine(make_engine_config(model, ARGUMENTS))
        self._engine.core.full_kv_cache_config = self._engine.core.scheduler.kv_cache_config
        self.kv_tokens = self._engine.kv_tokens

    def run(
        self, streams: Sequence[Stream], policy: str, *, streaming: bool, skips_idle: bool = False
    ) -> tuple[Outcome, list[Step]]:
        """Times to first token, and all steps. RuntimeError if a stream is left unanswered."""
        from stream2llm_pod.engine.configuring import EngineSettings

        core = self._engine.core
        serving = Serving(core, streaming)
        real = RealTime(core, serving.note, skips_idle=skips_idle)
        renew_scheduler(
            core, EngineSettings(policy=policy), blocks=self.kv_tokens // self._engine.block_size, clock=real.clock
        )
        for stream in streams:
            serving.expect(stream, real.at)
        real.run()
        return serving.end(streams), real.steps

    def close(self) -> None:
        self._engine.close()
