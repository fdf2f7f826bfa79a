"""Sizes in bytes, as people and Kubernetes write them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGTP])(i?)B?|B)?", re.IGNORECASE)
_POWERS = "KMGTP"


def parse_size(text: str) -> int:
    """Bytes in `4GiB`, `4Gi` (powers of 1024), `4GB`, `4G` (powers of 1000) or `4096`.

    Raises ValueError, naming the text, for anything else.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write it like 8GiB, 512MiB or 0")
    number, unit, binary = match.groups()
    factor = (1024 if binary else 1000) ** (_POWERS.index(unit.upper()) + 1) if unit else 1
    return int(float(number) * factor)
