"""The demo's folder for logs and data: gone after a good run, kept after a bad one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stream2llm_bench.progress import Say


@contextmanager
def work_folder(say: Say) -> Iterator[Path]:
    """A new folder; whoever sees the demo fail is told where the logs are."""
    folder = Path(tempfile.mkdtemp(prefix="stream2llm-demo-"))
    try:
        yield folder
    except BaseException:
        say(f"logs are kept in {folder}")
        raise
    shutil.rmtree(folder, ignore_errors=True)
