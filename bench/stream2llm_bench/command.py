"""`stream2llm bench NAME`: run one comparison, print its figures, write its table and plot."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


class BenchCommand:
    """Sub-command `bench`. A bench's own options follow its name."""

    help = "comparisons that print ratios, write a table and a plot; `bench list` names them"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="a bench, or `list`")
        parser.add_argument("--json", action="store_true", help="print the figures as one JSON object on stdout")
        parser.add_argument(
            "--output",
            type=Path,
            default=Path("bench-results"),
            metavar="DIR",
            help="where table, plot and figures are written (default: bench-results)",
        )
        parser.add_argument(
            "options", nargs=argparse.REMAINDER, metavar="...", help="options of the bench (NAME --help lists them)"
        )

    def run(self, args: argparse.Namespace) -> int:
        from stream2llm_bench import registry
        from stream2llm_bench.failing import Unavailable
        from stream2llm_bench.progress import Progress
        from stream2llm_bench.reporting import write

        if args.name == "list":
            if args.options:
                print(f"bench list takes no options, not {' '.join(args.options)}", file=sys.stderr)
                return 2
            for name, (_, measures) in registry.BENCHES.items():
                print(f"{name:10} {measures}")
            return 0
        if args.name not in registry.BENCHES:
            print(f"no bench is called {args.name!r}; there are: {', '.join(registry.BENCHES)}", file=sys.stderr)
            return 2
        try:
            bench = registry.load(args.name)
        except ImportError as error:
            print(
                f"bench {args.name} needs the Python package {error.name}: install stream2llm[bench]", file=sys.stderr
            )
            return 1
        options = parse_options(bench, args)
        try:
            report = bench.run(options, Progress())
        except Unavailable as error:
            print(f"bench {args.name}: {error}", file=sys.stderr)
            return 1
        written = write(report, options.output)
        if options.json:
            print(json.dumps(report.figures))
        else:
            print("\n\n".join([table.to_text() for table in report.tables] + list(report.notes)))
        print("written: " + ", ".join(str(path) for path in written), file=sys.stderr)
        return 0


def parse_options(bench: object, args: argparse.Namespace) -> argparse.Namespace:
    """The options of one bench, with `json` and `output` also accepted after its name."""
    parser = argparse.ArgumentParser(prog=f"stream2llm bench {args.name}", description=getattr(bench, "help", None))
    parser.add_argument("--json", action="store_true", default=args.json, help="print the figures as JSON")
    parser.add_argument("--output", type=Path, default=args.output, metavar="DIR", help="where results are written")
    bench.add_arguments(parser)  # type: ignore[attr-defined]
    return parser.parse_args(args.options)


COMMAND = BenchCommand()
