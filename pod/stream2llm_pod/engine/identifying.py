"""What a cost profile must match: this engine's hardware, model and configuration."""

from __future__ import annotations

from typing import Any

import vllm
from vllm.platforms import current_platform

from stream2llm.costprofile.hardware import CPU, product_name
from stream2llm.costprofile.key import ProfileKey, model_identity, vllm_minor


def profile_key(vllm_config: Any) -> ProfileKey:
    """The running engine's key. `vllm_config` must be complete, its block size chosen.

    Does not initialise CUDA: the platform asks the driver's management library.
    """
    model, scheduling = vllm_config.model_config, vllm_config.scheduler_config
    name, revision = model_identity(str(model.model), model.revision)
    return ProfileKey(
        gpu=CPU if current_platform.is_cpu() else product_name(current_platform.get_device_name()),
        model=name,
        revision=revision,
        dtype=str(model.dtype).removeprefix("torch."),
        kv_cache_dtype=str(vllm_config.cache_config.cache_dtype),
        quantization=None if model.quantization is None else str(model.quantization),
        tensor_parallel_size=int(vllm_config.parallel_config.tensor_parallel_size),
        block_size=int(vllm_config.cache_config.block_size),
        max_num_batched_tokens=int(scheduling.max_num_batched_tokens),
        vllm_minor=vllm_minor(vllm.__version__),
    )
