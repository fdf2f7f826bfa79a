"""Progress on stderr: a bar on a terminal, plain lines anywhere else. stdout stays free for results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Say = Callable[[str], None]
"""Shows one line to whoever waits."""


class Progress:
    """Says lines on stderr; draws bars there if it is a terminal."""

    def __init__(self) -> None:
        self.draws_bars = sys.stderr.isatty()

    def __call__(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


@contextmanager
def counting(say: Say, title: str, total: int) -> Iterator[Callable[[], None]]:
    """Count `total` steps under `title`; the function that it yields is called once per step done."""
    if isinstance(say, Progress) and say.draws_bars:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Bars(*columns, console=Console(stderr=True)) as bars:
            task = bars.add_task(title, total=total)
            yield lambda: bars.advance(task)
        return
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        quarters = 4 * done // total
        if quarters > 4 * (done - 1) // total:
            say(f"{title}: {25 * quarters} %")

    say(title)
    yield step
