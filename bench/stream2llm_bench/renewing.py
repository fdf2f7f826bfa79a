"""A fresh scheduler for an engine core that is already loaded: loading takes seconds, this milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def renew_scheduler(
    core: Any,
    settings: Any,
    *,
    blocks: int,
    clock: Callable[[], float],
    budget_tokens: int | None = None,
    scheduler_class: type[Any] | None = None,
) -> None:
    """Give the core a new, empty scheduler with these settings of ours and so many KV blocks for requests.

    The workers keep their cache and their pool, which must be as large at least. budget_tokens: tokens a step, where
    not as before; scheduler_class: vLLM's own, where not ours (it has no clock and knows no settings).
    """
    import copy
    from dataclasses import asdict, replace

    from stream2llm_pod.engine.configuring import CONFIG_KEY
    from stream2llm_pod.engine.scheduler import StreamScheduler

    config = core.vllm_config
    kv_cache_config = copy.copy(core.full_kv_cache_config)
    bytes_of_block = block_bytes(core)
    # vLLM keeps one block for itself. All tensors lie in one allocation, of which each gives the size.
    kv_cache_config.num_blocks = blocks + 1
    kv_cache_config.kv_cache_tensors = [
        replace(tensor, size=bytes_of_block * (blocks + 1)) for tensor in kv_cache_config.kv_cache_tensors
    ]
    config.cache_config.num_gpu_blocks = blocks + 1
    if budget_tokens is not None:
        config.scheduler_config.max_num_batched_tokens = budget_tokens
        config.scheduler_config.max_num_scheduled_tokens = None
    config.additional_config = {**config.additional_config, CONFIG_KEY: asdict(settings)}
    block_size = int(config.cache_config.block_size)
    core.scheduler = (scheduler_class or StreamScheduler)(
        vllm_config=config,
        kv_cache_config=kv_cache_config,
        structured_output_manager=core.structured_output_manager,
        include_finished_set=False,
        log_stats=False,
        block_size=block_size,
        hash_block_size=block_size,
    )
    core.scheduler.clock = clock


def block_bytes(core: Any) -> int:
    """Of one KV block over all layers, on one rank. `core.full_kv_cache_config` is what it was loaded with."""
    return int(core.full_kv_cache_config.kv_cache_tensors[0].size // core.full_kv_cache_config.num_blocks)
