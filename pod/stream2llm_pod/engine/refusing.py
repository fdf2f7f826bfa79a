"""Engine configurations in which streams would not stay correct. Refused at start-up, each with its reason."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler


def unsupported_features(scheduler: Any) -> list[str]:
    """One line for each feature of the engine that streaming prefill does not support."""
    config = scheduler.vllm_config
    swaps = scheduler.settings.swaps
    hash_block_size = scheduler.kv_cache_config.hash_block_size
    checks = (
        (len(scheduler.kv_cache_config.kv_cache_groups) != 1, "models with several KV cache groups (hybrid attention)"),
        (getattr(scheduler, "has_mamba_layers", False), "Mamba or linear-attention state"),
        (config.speculative_config is not None, "speculative decoding (--speculative-config)"),
        (config.parallel_config.pipeline_parallel_size > 1, "pipeline parallelism (--pipeline-parallel-size)"),
        (
            getattr(config.parallel_config, "decode_context_parallel_size", 1) > 1,
            "decode context parallelism (--decode-context-parallel-size)",
        ),
        (
            getattr(config.parallel_config, "prefill_context_parallel_size", 1) > 1,
            "prefill context parallelism (--prefill-context-parallel-size)",
        ),
        (config.parallel_config.enable_elastic_ep, "elastic expert parallelism (--enable-elastic-ep)"),
        (config.attention_config.hisparse_config is not None, "HiSparse attention"),
        (scheduler.is_encoder_decoder, "encoder-decoder models"),
        (config.model_config.is_diffusion, "diffusion models"),
        (config.model_config.runner_type == "pooling", "pooling models"),
        (
            swaps and scheduler.kv_cache_config.needs_kv_cache_zeroing,
            "--preemption swap or cost with a KV cache of mixed precision (use --preemption recompute)",
        ),
        (
            swaps and hash_block_size not in (None, scheduler.block_size),
            "--preemption swap or cost with prefix-cache hashes of parts of a block (use --preemption recompute)",
        ),
        (config.scheduler_config.policy != "fcfs", "--scheduling-policy priority (use --policy)"),
        (
            # vLLM itself runs either class either way, and then loses track of the tokens in flight.
            isinstance(scheduler, AsyncScheduler) != bool(config.scheduler_config.async_scheduling),
            f"{type(scheduler).__name__} while asynchronous scheduling is "
            + ("on" if config.scheduler_config.async_scheduling else "off (pass --no-async-scheduling)"),
        ),
    )
    return [reason for found, reason in checks if found]
