"""`stream2llm top`: pods, streams, KV cache, preemptions and times to first token, as they change."""

from __future__ import annotations

import argparse
import json
import sys
import time

from stream2llm.client import Client
from stream2llm.commands.connected import with_client
from stream2llm.connecting import add_redis_arguments
from stream2llm.overview.reading import Overview
from stream2llm.overview.table import render

_CLEAR = "\x1b[H\x1b[J"


class TopCommand:
    help = "show what the pods of a pool do, as it changes"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--interval-seconds", type=_interval, default=2.0, metavar="N", help="time between two looks (default 2)"
        )
        parser.add_argument("--once", action="store_true", help="look once; so without a terminal")
        parser.add_argument("--json", action="store_true", help="one JSON object a look, a line each")
        add_redis_arguments(parser, tenant=False)

    def run(self, args: argparse.Namespace) -> int:
        return with_client(args, lambda client: _top(args, client))


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number from 0.1 to 3600")
    return seconds


def _top(args: argparse.Namespace, client: Client) -> int:
    before: Overview | None = None
    again = not args.once and (args.json or sys.stdout.isatty())
    while True:
        now = client.overview()
        if args.json:
            print(json.dumps(now.to_dict()), flush=True)
        else:
            print(f"{_CLEAR if again else ''}{render(now, before)}", flush=True)
        if not again:
            return 0
        before = before if before is not None and now.time_ms - before.time_ms < 60_000 else now
        time.sleep(args.interval_seconds)


COMMAND = TopCommand()
