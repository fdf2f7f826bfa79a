"""`bench report`: one HTML page of all that the benches have written into a folder."""

from __future__ import annotations

import argparse
import base64
import html
from collections.abc import Callable, Sequence
from pathlib import Path

from stream2llm_bench.failing import Unavailable
from stream2llm_bench.reporting import Report, Table

ORDER = (
    "workloads",
    "align",
    "paper",
    "policies",
    "peers",
    "preemption",
    "ttft",
    "plan",
    "prefix",
    "swap",
    "route",
    "autoscale",
)
"""Those that the page begins with, as far as they are there; others follow by name."""
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}"
    "pre{overflow-x:auto;background:#f6f6f6;padding:1em;font-size:12px;line-height:1.35}img{max-width:100%}"
)


class ReportBench:
    name = "report"
    help = "one HTML page of what the benches have written"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--page", type=Path, metavar="FILE", help="where the page goes (default: DIR/report.html)")
        parser.add_argument("--note", action="append", default=[], metavar="TEXT", help="said at the top; repeatable")

    def run(self, args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
        names = available(args.output)
        if not names:
            raise Unavailable(f"{args.output} has no results; run a bench first (`stream2llm bench list`)")
        page = args.output / "report.html" if args.page is None else args.page
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(render(args.output, names, args.note), encoding="utf-8")
        progress(f"written: {page}")
        return Report(
            self.name, {"page": str(page), "benches": names}, [Table("On the page", ("bench",), [(n,) for n in names])]
        )


def available(folder: Path) -> list[str]:
    """The benches whose figures and tables are in `folder`, in the order of the page."""
    found = {path.stem for path in folder.glob("*.json") if path.with_suffix(".txt").exists()} - {ReportBench.name}
    return [name for name in ORDER if name in found] + sorted(found - set(ORDER))


def render(folder: Path, names: Sequence[str], notes: Sequence[str] = ()) -> str:
    """The page; pictures are in it, so it can be sent as one file."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>Stream2LLM: benchmarks</title>',
        f"<style>{STYLE}</style></head><body><h1>Benchmarks</h1>",
        *(f"<p>{html.escape(note)}</p>" for note in notes),
        "<p>" + " · ".join(f'<a href="#{html.escape(name)}">{html.escape(name)}</a>' for name in names) + "</p>",
    ]
    for name in names:
        parts.append(f'<h2 id="{html.escape(name)}"><code>stream2llm bench {html.escape(name)}</code></h2>')
        picture = folder / f"{name}.png"
        if picture.exists():
            encoded = base64.b64encode(picture.read_bytes()).decode()
            parts.append(f'<img alt="plot of {html.escape(name)}" src="data:image/png;base64,{encoded}">')
        text = (folder / f"{name}.txt").read_text(encoding="utf-8")
        parts.append(f"<pre>{html.escape(text.rstrip())}</pre>")
    return "\n".join([*parts, "</body></html>", ""])


BENCH = ReportBench()
