"""What a sub-command of `stream2llm` is."""

from __future__ import annotations

import argparse
from typing import Protocol


class Command(Protocol):
    """One sub-command, registered in the entry-point group `stream2llm.commands`.

    Its module must import in milliseconds: heavy imports (vLLM, matplotlib) belong into `run`, so that
    `stream2llm --help` stays fast and works without the extras.
    """

    help: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int:
        """Run it and return the exit status."""
        ...
