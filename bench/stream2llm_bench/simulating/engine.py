"""The pod's scheduler, KV cache manager and connector in vLLM's engine core, on simulated hardware."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stream2llm_bench.renewing import block_bytes, renew_scheduler
from stream2llm_bench.simulated_core import BLOCK_SIZE, make_core
from stream2llm_bench.simulating.hardware import DEFAULT_BUDGET_TOKENS, LONGEST_TOKENS, Hardware
from stream2llm_bench.simulating.limits import MOST_KV_TOKENS, check_memory
from stream2llm_bench.simulating.outcome import Outcome
from stream2llm_bench.simulating.serving import Serving
from stream2llm_bench.workloads.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOTS = 1024
"""Requests that run at once."""
STOCK = "stock"
"""In place of a policy: vLLM's own scheduler, and its own streaming input."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How streams are served. The names of policies and preemptions are the pod's; `STOCK` is a policy too."""

    hardware: Hardware
    policy: str = "srpf"
    preemption: str = "recompute"
    streaming: bool = True
    """False: every prompt is sent when it is whole."""
    budget_tokens: int = DEFAULT_BUDGET_TOKENS
    kv_tokens: int | None = None
    """KV memory, where not the hardware's."""
    max_wait_s: float | None = None

    @property
    def memory_tokens(self) -> int:
        return self.hardware.kv_tokens if self.kv_tokens is None else self.kv_tokens


class SimulatedEngine:
    """One engine core without a model. Each run has a scheduler and a clock of its own."""

    def __init__(self) -> None:
        from stream2llm_pod.engine.configuring import EngineSettings

        self._core, self._config = make_core(
            EngineSettings(preemption="swap", swap_bytes=1),
            longest_tokens=LONGEST_TOKENS,
            budget_tokens=DEFAULT_BUDGET_TOKENS,
            slots=SLOTS,
            blocks=MOST_KV_TOKENS // BLOCK_SIZE,
            counts_only=True,
        )
        self._core.full_kv_cache_config = self._core.scheduler.kv_cache_config

    def run(self, streams: Sequence[Stream], setting: Setting, answered: Callable[[], None] = lambda: None) -> Outcome:
        """Serve `streams`; `answered` is called for each that has its first token.

        Raises ValueError for a prompt that the KV memory cannot hold, RuntimeError if one is left unanswered or the
        scheduler had an alarm, and Stuck (a RuntimeError) if it stood still. vLLM's own scheduler may stand still.
        """
        from stream2llm_pod.engine.simulation.driving import Stuck, VirtualTime

        started = time.perf_counter()
        self._prepare(streams, setting)
        stock = setting.policy == STOCK
        run = Serving(self._core, setting.streaming, answered, stock=stock)
        virtual = VirtualTime(self._core, run.note)
        for stream in streams:
            run.expect(stream, virtual.at)
        with _collecting_rarely():
            try:
                virtual.run()
            except Stuck:
                if not stock:
                    raise
        outcome = run.end(streams)
        outcome.steps, outcome.wall_s = virtual.steps, time.perf_counter() - started
        return outcome

    def _prepare(self, streams: Sequence[Stream], setting: Setting) -> None:
        import vllm
        from vllm.v1.core.sched.scheduler import Scheduler

        from stream2llm_pod.engine.configuring import EngineSettings
        from stream2llm_pod.engine.identifying import profile_key
        from stream2llm_pod.engine.simulation.clock import SimulatedClock
        from stream2llm_pod.scheduling.policies import DEFAULT_MAX_WAIT_S

        check_memory(streams, setting, BLOCK_SIZE)
        blocks = setting.memory_tokens // BLOCK_SIZE
        core, executor = self._core, self._core.model_executor
        self._config.scheduler_config.max_num_batched_tokens = setting.budget_tokens
        document = json.loads(setting.hardware.profile(profile_key(self._config), vllm.__version__).to_json())
        executor.clock = SimulatedClock()
        executor.use_profile(document)
        executor.worker.forget()
        stock = setting.policy == STOCK
        settings = EngineSettings(
            policy="default" if stock else setting.policy,
            preemption=setting.preemption,
            swap_bytes=setting.hardware.host_tokens // BLOCK_SIZE * block_bytes(core),
            cost_profile=document,
            max_wait_s=DEFAULT_MAX_WAIT_S if setting.max_wait_s is None else setting.max_wait_s,
        )
        renew_scheduler(
            core,
            settings,
            blocks=blocks,
            clock=executor.clock,
            budget_tokens=setting.budget_tokens,
            scheduler_class=Scheduler if stock else None,
        )


@contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Millions of small objects live long; looking through them often takes a third of the time."""
    import gc

    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
