"""What an engine on CPU needs to be told or to find, checked before the model is loaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MIB = 2**20
KV_CACHE_SHARE = 4
CGROUP = Path("/sys/fs/cgroup")
COMPILER_MISSING = (
    "vLLM on CPU compiles the model with {name}, which is not installed; on Debian: apt-get install g++. "
    "Or pass --enforce-eager, which needs no compiler and is slower"
)


def default_kv_cache_bytes(free_bytes: Iterable[int]) -> int:
    """A quarter of the least of `free_bytes`, in whole MiB: weights, activations and others need room too."""
    return min(free_bytes) // KV_CACHE_SHARE // MIB * MIB


def free_memory_bytes(cgroup: Path = CGROUP) -> list[int]:
    """What the machine has left, and what the container may still take if it has a limit."""
    import psutil

    free = [int(psutil.virtual_memory().available)]
    try:
        limit, used = ((cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
        free.append(max(int(limit) - int(used), 0))
    except (OSError, ValueError):
        # No cgroup of version 2, or none with a limit ("max").
        pass
    return free


def chosen_kv_cache(parsed: Any, environment: Mapping[str, str]) -> bool:
    """Whether somebody has said how large the KV cache shall be. `parsed` are vLLM's arguments."""
    return bool(
        environment.get("VLLM_CPU_KVCACHE_SPACE")
        or parsed.kv_cache_memory_bytes is not None
        or parsed.num_gpu_blocks_override is not None
    )


def missing_compiler(parsed: Any, environment: Mapping[str, str]) -> str | None:
    """The C++ compiler that the engine will call and that is not there; None if it needs none or has it."""
    compilation = parsed.compilation_config
    if parsed.enforce_eager or int(parsed.optimization_level) == 0 or getattr(compilation, "mode", None) == 0:
        return None
    name = environment.get("CXX") or "g++"
    return None if shutil.which(name) else name
