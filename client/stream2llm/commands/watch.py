"""`stream2llm watch`: the events of one stream as they come."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from stream2llm.client import Client
from stream2llm.commands.connected import with_client
from stream2llm.connecting import add_redis_arguments
from stream2llm.events import ErrorEvent, encode


class WatchCommand:
    help = "print the events of a stream as they come; status 1 if it ends with an error"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("stream", help="stream id")
        parser.add_argument("--after", default="0", metavar="ID", help="resume after this event")
        parser.add_argument("--timeout-seconds", type=float, default=None, metavar="N", help="longest silence")
        parser.add_argument("--json", action="store_true", help="one JSON object a line")
        add_redis_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        return with_client(args, lambda client: _watch(args, client))


def _watch(args: argparse.Namespace, client: Client) -> int:
    stream = client.stream(args.stream)
    events = stream.events_with_ids(after=args.after, timeout_s=args.timeout_seconds, accept_timeout_s=None)
    for entry_id, event in events:
        fields = encode(event)
        if args.json:
            print(json.dumps({"id": entry_id, "event": fields["event"], "data": asdict(event)}), flush=True)
        else:
            print(f"{entry_id}  {fields['event']:<8}  {fields['data']}", flush=True)
        if isinstance(event, ErrorEvent) and event.terminal:
            return 1
    return 0


COMMAND = WatchCommand()
