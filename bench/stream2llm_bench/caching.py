"""Where things that are built once are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/stream2llm`, or `~/.cache/stream2llm`; safe to delete. The folder may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "stream2llm"
