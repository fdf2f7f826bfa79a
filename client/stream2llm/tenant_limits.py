"""What one tenant may have, as `stream2llm tenant add` or the operator has written it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

MAX_WEIGHT = 1_000.0
MIN_WEIGHT = 0.001

TENANT_ARGUMENT = "stream2llm_tenant"
WEIGHT_ARGUMENT = "stream2llm_weight"
"""In an engine request's extra arguments (vLLM's `vllm_xargs` over HTTP): whose it is, and that tenant's weight."""


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """weight: its share of the router and of the engine; the limits are on its open streams together, 0 for none."""

    weight: float = 1.0
    max_open_streams: int = 0
    max_open_bytes: int = 0


def checked_weight(value: float | bytes | str) -> float:
    """The weight as a number. Raises ValueError for what is no number from `MIN_WEIGHT` to `MAX_WEIGHT`."""
    weight = float(value)
    if not (math.isfinite(weight) and MIN_WEIGHT <= weight <= MAX_WEIGHT):
        raise ValueError(f"weight must be a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}, not {value!r}")
    return weight


def read_limits(raw: Mapping[bytes, bytes]) -> tuple[TenantLimits, list[str]]:
    """The limits in a tenant's hash, and what in it is wrong; a wrong value counts as absent."""
    wrong = []
    weight, streams, size_bytes = 1.0, 0, 0
    for name, value in raw.items():
        try:
            if name == b"weight":
                weight = checked_weight(value)
            elif name == b"max_open_streams":
                streams = _whole(value)
            elif name == b"max_open_bytes":
                size_bytes = _whole(value)
        except ValueError:
            wrong.append(f"{name.decode()} {value[:40].decode('utf-8', 'replace')!r}")
    return TenantLimits(weight, streams, size_bytes), wrong


def _whole(value: bytes) -> int:
    if not (value.isdigit() and len(value) <= 15):
        raise ValueError
    return int(value)
