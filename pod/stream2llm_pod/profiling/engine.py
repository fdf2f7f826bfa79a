"""The engine that is measured: vLLM's engine core in this process, its workers where vLLM puts them."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import psutil
import vllm
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.sampling_params import SamplingParams
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor import Executor

from stream2llm.costprofile import CostProfile, Curve
from stream2llm_pod.engine.arguments import engine_arguments
from stream2llm_pod.engine.configuring import CONFIG_KEY, EngineSettings
from stream2llm_pod.engine.identifying import profile_key
from stream2llm_pod.engine.swap.connector import own_connector
from stream2llm_pod.profiling.copying import time_copies
from stream2llm_pod.scheduling.costs import Preemption

VLLM_VERSION: str = vllm.__version__
MEMORY_SHARE = 0.4
"""Of the memory that is free, how much the pool for copies may take; on CPU the KV cache the same once more."""
FIRST_TOKEN = 10
"""Lower ids are left out: many vocabularies begin with special tokens."""


def make_engine_config(model: str, vllm_arguments: Sequence[str]) -> Any:
    """vLLM's configuration from the arguments that `serve` takes, but without prefix cache and with a pool for copies.

    Raises ValueError or OSError for what vLLM refuses.
    """
    parser = make_arg_parser(FlexibleArgumentParser(prog="stream2llm profile", description="arguments of vLLM"))
    parsed = parser.parse_args(["--model", model, *vllm_arguments])
    additional = dict(parsed.additional_config or {})
    ours = engine_arguments(EngineSettings(preemption=Preemption.SWAP, swap_bytes=1), async_scheduling=False)
    for attribute, value in ours.items():
        setattr(parsed, attribute, {**additional, **value} if attribute == "additional_config" else value)
    parsed.enable_prefix_caching = False
    config = AsyncEngineArgs.from_cli_args(parsed).create_engine_config()
    pool_bytes = _pool_bytes(config)
    config.additional_config[CONFIG_KEY]["swap_bytes"] = pool_bytes
    cache = config.cache_config
    if config.device_config.device_type == "cpu" and cache.kv_cache_memory_bytes is None:
        # vLLM would take most of the machine's memory; the longest prompt needs as much as the pool.
        cache.kv_cache_memory_bytes = pool_bytes + 2 * cache.block_size * _bytes_per_token(config)
    return config


def _bytes_per_token(config: Any) -> int:
    """Of KV over all ranks, by the model's shape; at least what the cache will really take."""
    model, parallel = config.model_config, config.parallel_config
    heads = model.get_num_kv_heads(parallel) * parallel.tensor_parallel_size
    return int(2 * model.get_num_layers(parallel) * heads * model.get_head_size() * model.dtype.itemsize)


def _pool_bytes(config: Any) -> int:
    blocks = -(-config.model_config.max_model_len // config.cache_config.block_size)
    longest_bytes = blocks * config.cache_config.block_size * _bytes_per_token(config)
    return int(min(longest_bytes, MEMORY_SHARE * psutil.virtual_memory().available))


class MeasuredEngine:
    """Implements `measuring.Subject`. Loads the model; `close` ends its workers."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.core = EngineCore(config, Executor.get_class(config), log_stats=False)
        connector = own_connector(self.core.scheduler.connector)
        assert connector is not None
        self.block_size = int(config.cache_config.block_size)
        self.budget_tokens = int(config.scheduler_config.max_num_batched_tokens)
        # vLLM ends a request whose prompt leaves no room for one more token.
        self.longest_tokens = int(config.model_config.max_model_len) - 1
        self._blocks = int(config.cache_config.num_gpu_blocks) - 1
        self.kv_tokens = self._blocks * self.block_size
        self.host_tokens = connector.pool.total_slots * self.block_size
        self.kv_bytes_per_token = connector.block_bytes // self.block_size
        self.key = profile_key(config)
        self._vocabulary = int(config.model_config.get_vocab_size())
        self._chooser = random.Random(0)
        self._requests = 0

    def prefill_s(self, tokens: int, deadline_s: float) -> float | None:
        """deadline_s: on `time.monotonic`."""
        core = self.core
        prompt = [self._chooser.randrange(FIRST_TOKEN, self._vocabulary) for _ in range(tokens)]
        self._requests += 1
        req_id = f"profile-{self._requests}"
        started_s = time.monotonic()
        request = EngineCoreRequest(
            request_id=req_id,
            external_req_id=req_id,
            prompt_token_ids=prompt,
            mm_features=None,
            sampling_params=SamplingParams(temperature=0, max_tokens=1, ignore_eos=True),
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        core.add_request(*core.preprocess_add_request(request))
        while not self._stepped_to_end():
            if time.monotonic() >= deadline_s:
                core.abort_requests([req_id])
                self._settle()
                return None
        seconds = time.monotonic() - started_s
        self._settle()
        return seconds

    def copies_s(self, tokens: int, repetitions: int) -> list[tuple[float, float]]:
        # Scattered, as blocks are after some hours of serving.
        blocks = self._chooser.sample(range(1, self._blocks + 1), -(-tokens // self.block_size))
        by_rank = self.core.collective_rpc(time_copies, args=(blocks, repetitions))
        return [
            (max(out_s for out_s, _ in ranks), max(in_s for _, in_s in ranks)) for ranks in zip(*by_rank, strict=True)
        ]

    def profile(self, prefill: Curve, swap_out: Curve, swap_in: Curve) -> CostProfile:
        """What was measured here, as a profile of this engine."""
        return CostProfile.of_engine(
            self.key,
            kv_bytes_per_token=self.kv_bytes_per_token,
            vllm_version=VLLM_VERSION,
            source="measured",
            measured_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            prefill=prefill,
            swap_out=swap_out,
            swap_in=swap_in,
        )

    def close(self) -> None:
        self.core.shutdown()

    def _stepped_to_end(self) -> bool:
        outputs, executed = self.core.step_fn()
        self.core.post_step(executed)
        return any(output.finish_reason is not None for client in (outputs or {}).values() for output in client.outputs)

    def _settle(self) -> None:
        """Let the workers forget what has ended."""
        while self.core.scheduler.has_requests():
            self.core.step_fn()
