"""Cost profiles as a profiler would measure them for the scenarios."""

from __future__ import annotations

import json
from typing import Any

DOCUMENT: dict[str, Any] = {
    "schema": 1,
    "gpu": "NVIDIA-H200",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "revision": "",
    "dtype": "bfloat16",
    "kv_cache_dtype": "auto",
    "quantization": None,
    "tensor_parallel_size": 1,
    "block_size": 16,
    "max_num_batched_tokens": 8192,
    "kv_bytes_per_token": 131072,
    "vllm_version": "0.32.0",
    "source": "measured",
    "measured_at": "2026-11-30T00:00:00Z",
    "prefill": {"tokens": [16, 1024, 8192], "ms": [6.0, 40.0, 300.0]},
    "swap_out": {"tokens": [16, 1024, 8192], "ms": [0.6, 3.0, 20.0]},
    "swap_in": {"tokens": [16, 1024, 8192], "ms": [0.6, 3.0, 20.0]},
}


def profile_text(**changes: Any) -> str:
    """The document as a termination message, with some keys changed."""
    return json.dumps({**DOCUMENT, **changes})
