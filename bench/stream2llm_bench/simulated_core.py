"""vLLM's engine core on the simulated executor, with the scheduler arguments that a pod has."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream2llm.costprofile import CostProfile, Curve, ProfileKey

if TYPE_CHECKING:
    from stream2llm_pod.engine.configuring import EngineSettings

EXECUTOR = "stream2llm_pod.engine.simulation.executor.SimulatedExecutor"
BLOCK_SIZE = 32
VOCABULARY = 32_000
KV_BYTES_PER_TOKEN = 131_072
"""Of Llama-3.1-8B in 16 bits: how much of a copy the staging buffer of the CUDA backend holds."""
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "torch_dtype": "float32",
}


def made_up_profile(
    key: ProfileKey, lengths: Sequence[int], prefill_ms: Sequence[float], copy_ms: Sequence[float]
) -> CostProfile:
    """A profile of simulated hardware: ms of prefill, and of a copy each way, for these numbers of tokens."""
    copy = Curve(tuple(lengths), tuple(round(ms, 4) for ms in copy_ms))
    return CostProfile.of_engine(
        key,
        kv_bytes_per_token=KV_BYTES_PER_TOKEN,
        vllm_version=f"{key.vllm_minor}.0",
        source="estimated",
        measured_at="",
        prefill=Curve(tuple(lengths), tuple(round(ms, 4) for ms in prefill_ms)),
        swap_out=copy,
        swap_in=copy,
    )


def make_core(
    settings: EngineSettings,
    *,
    longest_tokens: int,
    budget_tokens: int,
    slots: int,
    blocks: int,
    counts_only: bool = False,
) -> tuple[Any, Any]:
    """(engine core, its vLLM configuration); no model is loaded, its shape is all that is needed.

    longest_tokens: longest prompt; budget_tokens: tokens a step; slots: requests that run at once; blocks: KV blocks;
    counts_only: for long runs, without prefix cache and with a worker that checks nothing.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor import Executor

    from stream2llm_pod.engine.arguments import engine_arguments
    from stream2llm_pod.engine.simulation.executor import CONFIG_KEY

    arguments = engine_arguments(settings, async_scheduling=False)
    if counts_only:
        arguments["enable_prefix_caching"] = False
        arguments["additional_config"][CONFIG_KEY] = {"computes_values": False}

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps({**MODEL, "max_position_embeddings": longest_tokens}))
        config = EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="float32",
            block_size=BLOCK_SIZE,
            max_model_len=longest_tokens,
            max_num_batched_tokens=budget_tokens,
            max_num_seqs=slots,
            num_gpu_blocks_override=blocks,
            distributed_executor_backend=EXECUTOR,
            **arguments,
        ).create_engine_config()
        core = EngineCore(config, Executor.get_class(config), log_stats=False)
    if counts_only:
        # A KV connector would have every block hashed all the same.
        core.request_block_hasher = None
    return core, config
