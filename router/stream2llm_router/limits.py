"""What one tenant may have, as `stream2llm tenant add` or the operator has written it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

MAX_WEIGHT = 1_000.0


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """weight: its share of the router and of the engine; the limits are on its open streams together, 0 for none."""

    weight: float = 1.0
    max_open_streams: int = 0
    max_open_bytes: int = 0


def read_limits(raw: Mapping[bytes, bytes]) -> tuple[TenantLimits, list[str]]:
    """The limits in a tenant's hash, and what in it is wrong; a wrong value counts as absent."""
    wrong = []
    weight, streams, size_bytes = 1.0, 0, 0
    for name, value in raw.items():
        try:
            if name == b"weight":
                given = float(value)
                if not (math.isfinite(given) and 0 < given <= MAX_WEIGHT):
                    raise ValueError
                weight = given
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
