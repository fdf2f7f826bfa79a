"""What every comparison returns, and how it is shown: figures as JSON, a table for people, a plot."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of already formatted cells under their column titles."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_text(self) -> str:
        widths = [max(len(str(row[i])) for row in [self.columns, *self.rows]) for i in range(len(self.columns))]

        def line(cells: Sequence[str]) -> str:
            return "  ".join(str(cell).ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()

        rule = "  ".join("-" * width for width in widths)
        return "\n".join([self.title, line(self.columns), rule, *(line(row) for row in self.rows)])


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one bench.

    `figures` is printed by `--json`, exactly; `plot` draws into the path it is given.
    """

    name: str
    figures: dict[str, Any]
    tables: Sequence[Table]
    plot: Callable[[Path], None] | None = None
    notes: Sequence[str] = field(default=())


class Bench(Protocol):
    """One comparison of `stream2llm bench NAME`."""

    name: str
    help: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
        """Measure; `progress` prints one line to stderr."""
        ...


def write(report: Report, folder: Path) -> list[Path]:
    """Write `<name>.json`, `<name>.txt` and, if it can be drawn, `<name>.png` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    figures, table = folder / f"{report.name}.json", folder / f"{report.name}.txt"
    figures.write_text(json.dumps(report.figures, indent=1) + "\n")
    table.write_text("\n\n".join([t.to_text() for t in report.tables] + list(report.notes)) + "\n")
    written = [figures, table]
    if report.plot is not None:
        picture = folder / f"{report.name}.png"
        report.plot(picture)
        written.append(picture)
    return written
