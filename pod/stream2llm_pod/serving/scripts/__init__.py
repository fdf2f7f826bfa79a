"""The pod's server-side scripts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and the SHA-1 that EVALSHA calls it by."""

    source: str
    sha: str


@cache
def load(name: str) -> Script:
    """The script `<name>.lua` of this folder."""
    source = resources.files(__name__).joinpath(f"{name}.lua").read_text(encoding="utf-8")
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
