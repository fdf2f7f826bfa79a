"""What happened when, once a second: as a table and as a plot in the run's folder."""

from __future__ import annotations

import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NO_BREAK = "\u00a0"


@dataclass(frozen=True, slots=True)
class Moment:
    """seconds: since the start. A signal is None where Prometheus has none. is_ready: the condition ScalingReady."""

    seconds: float
    streams: int
    wanted_pods: int
    ready_pods: int
    preemptions_per_s: float | None
    signal: float | None
    kv_usage: float | None
    backlog_s: float | None
    scaling: str


COLUMNS = (
    *("s", "open streams", "pods wanted", "pods ready", "preemptions/s", "signal", "KV sum", "backlog s"),
    "ScalingReady",
)


class Timeline:
    """Calls `look(seconds)` each second in a thread of its own, as a context."""

    def __init__(self, look: Callable[[float], Moment]) -> None:
        self._look = look
        self._started_s = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="timeline", daemon=True)
        self.moments: list[Moment] = []
        self.marks: list[tuple[float, str]] = []
        self.failures: list[Exception] = []

    def __enter__(self) -> Timeline:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._started_s

    def mark(self, text: str) -> None:
        """Something is done to the pool now."""
        self.marks.append((self.now_s, text))

    def since_mark(self) -> list[Moment]:
        """The moments after the last mark."""
        return [moment for moment in self.moments if moment.seconds >= self.marks[-1][0]]

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            try:
                self.moments.append(self._look(self.now_s))
            except Exception as error:
                self.failures.append(error)

    def write(self, path: Path, title: str) -> None:
        """`path` with the suffixes .txt and .png."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [title, "  ".join(COLUMNS)]
        marks = list(self.marks)
        for moment in self.moments:
            while marks and marks[0][0] <= moment.seconds:
                lines.append(f"--- {marks.pop(0)[1]}")
            cells = (
                *(moment.streams, moment.wanted_pods, moment.ready_pods),
                *(_shown(moment.preemptions_per_s), _shown(moment.signal), _shown(moment.kv_usage)),
                *(_shown(moment.backlog_s), moment.scaling),
            )
            widths = map(len, COLUMNS[1:])
            row = "  ".join(f"{cell!s:>{width}}" for cell, width in zip(cells, widths, strict=True))
            lines.append(f"{moment.seconds:5.0f}  {row}")
        path.with_suffix(".txt").write_text("\n".join(lines) + "\n")
        self._draw(path.with_suffix(".png"), title)

    def _draw(self, path: Path, title: str) -> None:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        figure, (top, middle, bottom) = pyplot.subplots(3, 1, sharex=True, figsize=(9, 6.8))
        seconds = [moment.seconds for moment in self.moments]

        def line(axes: Any, name: str, label: str, **more: Any) -> None:
            values = [getattr(moment, name) for moment in self.moments]
            axes.plot(seconds, [float("nan") if value is None else value for value in values], label=label, **more)

        line(top, "streams", "open streams", color="tab:gray")
        line(middle, "wanted_pods", "pods wanted", drawstyle="steps-post")
        line(middle, "ready_pods", "pods ready", drawstyle="steps-post")
        line(bottom, "preemptions_per_s", "memory preemptions a second", color="tab:red")
        line(bottom, "kv_usage", "KV cache in use, sum over pods", color="tab:green")
        line(bottom, "signal", "preemption signal", color="tab:purple")
        for axes in (top, middle, bottom):
            axes.set_ylim(bottom=0)
            axes.legend(loc="upper right", fontsize="small", framealpha=0.6)
            for at_s, _ in self.marks:
                axes.axvline(at_s, color="black", linewidth=0.6, linestyle=":")
        for number, (at_s, _) in enumerate(self.marks, start=1):
            top.annotate(f"{number}", (at_s, top.get_ylim()[1]), fontsize="x-small", annotation_clip=False)
        bottom.set_xlabel("seconds")
        figure.suptitle(title, fontsize="medium")
        waits = "  ".join(
            f"{number}\u00a0{text.replace(' ', NO_BREAK)}" for number, (_, text) in enumerate(self.marks, 1)
        )
        lines = textwrap.wrap(f"Waiting for: {waits}", 130, break_long_words=False)
        figure.text(0.02, 0.01, "\n".join(lines), fontsize="x-small")
        figure.tight_layout(rect=(0, 0.02 + 0.018 * len(lines), 1, 1))
        figure.savefig(path, dpi=130)
        pyplot.close(figure)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
