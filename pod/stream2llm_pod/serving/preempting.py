"""The arguments that say what a preemption does, checked before vLLM is loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from stream2llm.costprofile.document import MAX_PROFILE_BYTES, parse_profile
from stream2llm_pod.scheduling.costs import Preemption
from stream2llm_pod.scheduling.victims import COST, PREEMPTION_KINDS
from stream2llm_pod.serving.sizes import parse_size

DEFAULT_SWAP_SPACE = "4GiB"


def preemption_settings(kind: str, cost_profile: str | None, swap_space: str) -> dict[str, Any]:
    """The fields of `EngineSettings` that the three arguments stand for.

    Raises ValueError, naming the argument, the value and what is allowed.
    """
    if kind not in PREEMPTION_KINDS:
        raise ValueError(f"--preemption {kind!r} is not known; choose one of {', '.join(PREEMPTION_KINDS)}")
    if kind == COST and cost_profile is None:
        raise ValueError("--preemption cost needs --cost-profile FILE; measure one with `stream2llm profile`")
    try:
        swap_bytes = parse_size(swap_space)
    except ValueError as error:
        raise ValueError(f"--swap-space {error}") from error
    if kind == Preemption.RECOMPUTE:
        swap_bytes = 0
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if swap_bytes >= memory_bytes:
        raise ValueError(
            f"--swap-space {swap_space} is {swap_bytes} bytes, and this machine has {memory_bytes}; "
            "leave some for the rest"
        )
    return {
        "preemption": kind,
        "swap_bytes": swap_bytes,
        "cost_profile": None if cost_profile is None else read_cost_profile(cost_profile),
    }


def read_cost_profile(path: str) -> dict[str, Any]:
    """The document in a file, checked but not yet compared with the engine.

    Raises ValueError, naming the file and the field, for one that cannot be read or is not a cost profile.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_PROFILE_BYTES + 1)
    except OSError as error:
        raise ValueError(f"--cost-profile {path} cannot be read: {error.strerror}") from error
    try:
        profile = parse_profile(content)
    except ValueError as error:
        raise ValueError(f"--cost-profile {path}: {error}") from error
    document: dict[str, Any] = json.loads(profile.to_json(compact=False))
    return document
