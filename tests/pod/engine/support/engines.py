"""Engine cores in this process, real and simulated, and fresh schedulers for them."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor import Executor
from vllm.v1.request import RequestStatus

from stream2llm_pod.engine.arguments import engine_arguments
from stream2llm_pod.engine.configuring import CONFIG_KEY, EngineSettings
from stream2llm_pod.engine.identifying import profile_key
from stream2llm_pod.engine.scheduler import AsyncStreamScheduler, StreamScheduler
from stream2llm_pod.engine.simulation.clock import SimulatedClock

BLOCK_SIZE = 32
MAX_MODEL_LEN = 1024
POOL_BLOCKS = 400
SIMULATED_EXECUTOR = "stream2llm_pod.engine.simulation.executor.SimulatedExecutor"
STEP_S = 0.01
HOST_BYTES = 64 << 20
"""Host memory of the real engine's worker; each scheduler uses as much of it as its shape says."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What one scheduler gets. `blocks` are those that requests can hold."""

    blocks: int = POOL_BLOCKS - 1
    budget_tokens: int = 64
    slots: int = 16
    policy: str = "srpf"
    max_wait_s: float = 60.0
    prefix_caching: bool = True
    stock: bool = False
    preemption: str = "recompute"
    host_blocks: int = 0
    """KV blocks that the host pool holds."""
    swap_is_cheap: bool = True
    """For `cost`: copying costs a thousandth of computing the same, or a thousand times as much."""
    min_residency_s: float = 0.0
    second_runner: bool = False
    """As with vLLM's second model runner, which drops a preempted request's state (simulated engine only)."""


class Engine:
    """A loaded engine core whose scheduler can be replaced; weights and KV tensors stay."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.asynchronous: bool = core.vllm_config.scheduler_config.async_scheduling
        self._kv_cache_config = core.scheduler.kv_cache_config
        self._hasher = core.request_block_hasher
        self.simulated = hasattr(core.model_executor, "clock")
        # One for each process in vLLM's eyes; here several engines share one.
        self._connector_agent = kv_transfer_state._KV_CONNECTOR_AGENT
        self.clock: SimulatedClock = core.model_executor.clock if self.simulated else SimulatedClock()

    @property
    def scheduler(self) -> Any:
        return self.core.scheduler

    @property
    def vocabulary(self) -> int:
        return int(self.core.vllm_config.model_config.get_vocab_size())

    @property
    def swap_backend(self) -> Any:
        """What copies blocks in the real engine's worker."""
        return self._connector_agent.backend

    def read_blocks(self, block_ids: list[int]) -> list[Any]:
        """A copy of KV blocks of the real engine, layer by layer; the first dimension is the block."""
        runner = self.core.model_executor.driver_worker.worker.model_runner
        return [cache[block_ids].clone() for cache in runner.kv_caches]

    def passed(self) -> None:
        """A step has passed: move the clock of an engine whose executor does not."""
        if not self.simulated:
            self.clock.advance(STEP_S)

    def abandon(self) -> None:
        """After a failed check: drop everything, so that the next history starts clean and a failure can shrink."""
        core = self.core
        with contextlib.suppress(Exception):
            core.scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
            for _ in range(5):
                if core.scheduler.has_requests() or core.batch_queue:
                    core.step_fn()
        if core.batch_queue:
            core.batch_queue.clear()
        if self.simulated:
            core.model_executor.worker.forget()
        core.scheduler.finished_req_ids = set()
        core.scheduler.requests.clear()

    def renew(self, shape: Shape) -> Any:
        """A new, empty scheduler."""
        core, config = self.core, self.core.vllm_config
        kv_transfer_state._KV_CONNECTOR_AGENT = self._connector_agent
        if core.scheduler.requests or core.scheduler.has_requests() or core.batch_queue:
            self.abandon()
        kv_cache_config = copy.copy(self._kv_cache_config)
        kv_cache_config.num_blocks = shape.blocks + 1
        # All tensors are in one allocation, of which each gives the size.
        block_bytes = kv_cache_config.kv_cache_tensors[0].size // self._kv_cache_config.num_blocks
        kv_cache_config.kv_cache_tensors = [
            replace(tensor, size=block_bytes * kv_cache_config.num_blocks)
            for tensor in kv_cache_config.kv_cache_tensors
        ]
        config.cache_config.num_gpu_blocks = shape.blocks + 1
        config.cache_config.enable_prefix_caching = shape.prefix_caching
        config.scheduler_config.max_num_batched_tokens = shape.budget_tokens
        config.scheduler_config.max_num_scheduled_tokens = None
        config.scheduler_config.max_num_seqs = shape.slots
        settings = EngineSettings(
            policy=shape.policy,
            max_wait_s=shape.max_wait_s,
            preemption=shape.preemption,
            swap_bytes=shape.host_blocks * block_bytes,
            cost_profile=profile_of(config, swap_is_cheap=shape.swap_is_cheap) if shape.preemption == "cost" else None,
            min_residency_s=shape.min_residency_s,
        )
        config.additional_config = {**config.additional_config, CONFIG_KEY: asdict(settings)}
        classes = (Scheduler, AsyncScheduler) if shape.stock else (StreamScheduler, AsyncStreamScheduler)
        core.request_block_hasher = self._hasher if shape.prefix_caching else None
        core.scheduler = classes[self.asynchronous](
            vllm_config=config,
            kv_cache_config=kv_cache_config,
            structured_output_manager=core.structured_output_manager,
            include_finished_set=False,
            log_stats=True,
            block_size=BLOCK_SIZE,
            hash_block_size=BLOCK_SIZE,
        )
        if shape.second_runner:
            core.scheduler.use_v2_model_runner = True
        if self.simulated:
            core.model_executor.worker.forgets_preempted = shape.second_runner
        core.scheduler.clock = self.clock
        return core.scheduler


def profile_of(config: Any, *, swap_is_cheap: bool) -> dict[str, Any]:
    """A cost profile that fits this engine, with a straight line for each curve."""
    key = asdict(profile_key(config))
    minor = key.pop("vllm_minor")
    copying_ms = 0.001 if swap_is_cheap else 1000.0
    return {
        "schema": 1,
        **key,
        "vllm_version": f"{minor}.0",
        "kv_bytes_per_token": 1024,
        "source": "estimated",
        "measured_at": "",
        "prefill": {"tokens": [1, 1024], "ms": [1.0, 1024.0]},
        "swap_out": {"tokens": [1, 1024], "ms": [copying_ms, 1024 * copying_ms]},
        "swap_in": {"tokens": [1, 1024], "ms": [copying_ms, 1024 * copying_ms]},
    }


def make_config(
    model: Path,
    *,
    asynchronous: bool = False,
    policy: str = "srpf",
    preemption: str = "recompute",
    swap_bytes: int = 0,
    other_connector: dict[str, Any] | None = None,
    **arguments: Any,
) -> Any:
    """A vLLM configuration with the arguments that a pod sets, and those given here."""
    settings = EngineSettings(policy=policy, preemption=preemption, swap_bytes=swap_bytes)
    pod = engine_arguments(settings, async_scheduling=asynchronous, other_connector=other_connector)
    pod["additional_config"] = {**pod["additional_config"], **arguments.pop("additional_config", {})}
    values = {
        "model": str(model),
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "dtype": "float32",
        "block_size": BLOCK_SIZE,
        "max_model_len": MAX_MODEL_LEN,
        "max_num_batched_tokens": 256,
        "max_num_seqs": 16,
        "seed": 0,
        "num_gpu_blocks_override": POOL_BLOCKS,
        **pod,
        **arguments,
    }
    config = EngineArgs(**values).create_engine_config()
    # The CPU platform turns it off.
    config.scheduler_config.async_scheduling = asynchronous
    return config


def make_core(config: Any) -> Any:
    kv_transfer_state._KV_CONNECTOR_AGENT = None
    return EngineCore(config, Executor.get_class(config), log_stats=True)


def real_engine(model: Path, *, asynchronous: bool, **arguments: Any) -> Engine:
    """Loads the model. An asynchronous one needs `fake_cuda_streams` as long as it lives."""
    return Engine(
        make_core(
            make_config(
                model,
                asynchronous=asynchronous,
                distributed_executor_backend="uni",
                preemption="swap",
                swap_bytes=HOST_BYTES,
                **arguments,
            )
        )
    )


def simulated_engine(model: Path, *, asynchronous: bool = False, **arguments: Any) -> Engine:
    """Needs nothing of the model but its configuration."""
    config = make_config(model, asynchronous=asynchronous, distributed_executor_backend=SIMULATED_EXECUTOR, **arguments)
    return Engine(make_core(config))


@contextlib.contextmanager
def fake_cuda_streams() -> Iterator[None]:
    """Lets the model runner's asynchronous output path run on CPU: streams and events become no-ops."""

    class Event:
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
        def record(self, *args: Any) -> None: ...
        def synchronize(self) -> None: ...
        def wait(self, *args: Any) -> None: ...

    class Stream:
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
        def wait_stream(self, *args: Any) -> None: ...
        def wait_event(self, *args: Any) -> None: ...

    fakes: dict[str, Any] = {
        "Event": Event,
        "Stream": Stream,
        "current_stream": lambda *args, **kwargs: Stream(),
        "stream": lambda *args, **kwargs: contextlib.nullcontext(),
    }
    real = {name: getattr(torch.cuda, name) for name in fakes}
    for name, fake in fakes.items():
        setattr(torch.cuda, name, fake)
    try:
        yield
    finally:
        for name, original in real.items():
            setattr(torch.cuda, name, original)
