"""vLLM executor without a model: `distributed_executor_backend=".....simulation.executor.SimulatedExecutor"`.

It answers the calls that vLLM's engine core makes to its workers, so the engine core, the scheduler and the KV cache
manager are the real ones. Settings are read from `additional_config["simulation"]`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.worker.worker_base import CompilationTimes

from stream2llm.costprofile import parse_profile
from stream2llm_pod.engine.simulation.clock import SimulatedClock
from stream2llm_pod.engine.simulation.counting import CountingWorker
from stream2llm_pod.engine.simulation.timing import StepTimes, cost_model
from stream2llm_pod.engine.simulation.worker import SimulatedWorker
from stream2llm_pod.engine.swap.cuda import STAGING_BYTES
from stream2llm_pod.engine.swap.metadata import SwapReport

CONFIG_KEY = "simulation"


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """The simulated hardware. With a cost profile a step takes what its curves say; without one `step_ms` plus
    `token_us` for each token in it, and copies take no time (not calibrated)."""

    kv_tokens: int = 100_000
    layers: int = 1
    step_ms: float = 4.0
    token_us: float = 20.0
    profile: Mapping[str, Any] | None = None
    """The document of a cost profile (schema 1)."""
    forgets_preempted: bool = False
    """Behave as vLLM's second model runner, which drops a preempted request's state."""
    paced: bool = False
    """A step takes its time for real too, so that a pod on this executor can be stopped in the middle of something."""
    computes_values: bool = True
    """Keep and check every token's KV value, which costs a microsecond a token. False: only count, for long runs."""
    fatal_prompt: tuple[int, ...] = ()
    """Token ids that end the process when a prompt that begins with them is computed, as a bad kernel would."""


class SimulatedExecutor(Executor):
    """One worker, no forward pass. `clock` is the virtual time; give it to the scheduler as its clock."""

    def _init_executor(self) -> None:
        additional = self.vllm_config.additional_config
        raw = additional.get(CONFIG_KEY, {}) if isinstance(additional, Mapping) else {}
        self.settings = SimulationSettings(**raw)
        self.clock = SimulatedClock()
        self.steps = 0
        self.use_profile(self.settings.profile)
        self.worker: SimulatedWorker | CountingWorker
        self._computed: ModelRunnerOutput | None = None

    def use_profile(self, document: Mapping[str, Any] | None) -> None:
        """From now on steps take what this profile says. Raises InvalidProfile."""
        self._times: StepTimes | None = None
        if document is not None:
            profile, block_size = parse_profile(document), int(self.cache_config.block_size)
            rank_block_bytes = profile.kv_bytes_per_token * block_size // profile.tensor_parallel_size
            staging_blocks = STAGING_BYTES // max(rank_block_bytes, 1)
            self._times = StepTimes(cost_model(profile), block_size, staging_blocks)

    # ---------------------------------------------------------------- calls to the workers
    def collective_rpc(
        self,
        method: Any,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
        **_: Any,
    ) -> Any:
        answers = [self._answer(method, args)]
        return _done(answers) if non_block else answers

    def _answer(self, method: Any, args: tuple[Any, ...]) -> Any:
        if method == "get_kv_cache_spec":
            return {f"layer.{i}": self._kv_cache_spec() for i in range(self.settings.layers)}
        if method == "determine_available_memory":
            spec = self._kv_cache_spec()
            blocks = self.settings.kv_tokens // spec.block_size + 1
            return blocks * spec.page_size_bytes * self.settings.layers
        if method == "initialize_from_config":
            self._make_worker(args[0][0].num_blocks)
        elif method == "get_supported_tasks":
            return ("generate",)
        elif method == "get_supported_kv_cache_layouts":
            return [layout.name for layout in KVCacheLayout]
        elif method == "compile_or_warm_up_model":
            return CompilationTimes(language_model=0.0, encoder=0.0)
        return None

    def _kv_cache_spec(self) -> Any:
        return FullAttentionSpec(
            block_size=self.cache_config.block_size, num_kv_heads=1, head_size=32, dtype=torch.float16
        )

    def _make_worker(self, num_blocks: int) -> None:
        if not self.settings.computes_values:
            self.worker = CountingWorker()
            return
        self.worker = SimulatedWorker(
            num_blocks,
            self.cache_config.block_size,
            self.model_config.get_vocab_size(),
            forgets_preempted=self.settings.forgets_preempted,
        )

    # ---------------------------------------------------------------- steps
    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        tokens = scheduler_output.total_num_scheduled_tokens
        fatal = list(self.settings.fatal_prompt)
        if fatal and any(new.prompt_token_ids[: len(fatal)] == fatal for new in scheduler_output.scheduled_new_reqs):
            os._exit(1)
        sampled = self.worker.execute(scheduler_output)
        if not tokens:
            if self._times is not None:
                self.clock.advance_to(self._times.step(scheduler_output, self.clock())[0])
            return _done(EMPTY_MODEL_RUNNER_OUTPUT) if non_block else EMPTY_MODEL_RUNNER_OUTPUT
        self.steps += 1
        self._computed = ModelRunnerOutput(
            req_ids=list(sampled),
            req_id_to_index={req_id: i for i, req_id in enumerate(sampled)},
            sampled_token_ids=list(sampled.values()),
        )
        self._take_time(scheduler_output, tokens, self._computed)
        return _done(None) if non_block else None

    def _take_time(self, scheduler_output: Any, tokens: int, output: ModelRunnerOutput) -> None:
        before_s = self.clock()
        if self._times is None:
            self.clock.advance(self.settings.step_ms / 1e3 + tokens * self.settings.token_us / 1e6)
        else:
            ended_s, copies = self._times.step(scheduler_output, before_s)
            self.clock.advance_to(ended_s)
            if copies:
                output.kv_connector_output = KVConnectorOutput(kv_connector_worker_meta=SwapReport(copies))
        if self.settings.paced:
            time.sleep(self.clock() - before_s)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        output, self._computed = self._computed, None
        return _done(output) if non_block else output

    def check_health(self) -> None:
        return

    def shutdown(self) -> None:
        return

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return True


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future
