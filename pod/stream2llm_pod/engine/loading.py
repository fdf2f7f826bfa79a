"""Whether vLLM can be loaded here, found out early so that the message is clear."""

from __future__ import annotations

import ctypes
import ctypes.util

LIBNUMA_MISSING = "vLLM on CPU needs the system library libnuma; on Debian: apt-get install libnuma1"


class CannotLoad(Exception):
    """Why vLLM does not load, in words for whoever started it."""


def load_platform() -> bool:
    """Import vLLM's platform; True on CPU. Raises CannotLoad with what to install."""
    try:
        from vllm.platforms import current_platform
    except ImportError as error:
        raise CannotLoad(
            LIBNUMA_MISSING if "libnuma" in str(error) else f"install stream2llm[pod] ({error})"
        ) from error
    is_cpu = bool(current_platform.is_cpu())
    if is_cpu and ctypes.util.find_library("numa") is None and not _loads("libnuma.so.1"):
        raise CannotLoad(LIBNUMA_MISSING)
    return is_cpu


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
