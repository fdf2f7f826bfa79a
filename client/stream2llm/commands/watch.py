"""`stream2llm watch`: the events of one stream as they come."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict

from stream2llm.client import Client
from stream2llm.commands.connected import with_client
from stream2llm.connecting import add_redis_arguments
from stream2llm.errors import NoAnswer
from stream2llm.events import ErrorEvent, Event, encode
from stream2llm.following import START, check_event_id
from stream2llm.keys import check_stream

SILENCE_S = 2.0
"""After so long without a first event a person is told what is waited for."""


class WatchCommand:
    help = "print the events of a stream as they come; status 1 if it ends with an error"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("stream", type=_checked(check_stream), help="stream id")
        parser.add_argument(
            "--after", type=_checked(check_event_id), default=START, metavar="ID", help="resume after this event"
        )
        parser.add_argument("--timeout-seconds", type=float, default=None, metavar="N", help="longest silence")
        parser.add_argument("--json", action="store_true", help="one JSON object a line")
        add_redis_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        return with_client(args, lambda client: _watch(args, client))


def _checked(check: Callable[[str], str]) -> Callable[[str], str]:
    """For argparse, which would leave out why a value is wrong."""

    def convert(text: str) -> str:
        try:
            return check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _watch(args: argparse.Namespace, client: Client) -> int:
    for entry_id, event in _events(args, client):
        fields = encode(event)
        if args.json:
            print(json.dumps({"id": entry_id, "event": fields["event"], "data": asdict(event)}), flush=True)
        else:
            print(f"{entry_id}  {fields['event']:<8}  {fields['data']}", flush=True)
        if isinstance(event, ErrorEvent) and event.terminal:
            return 1
    return 0


def _events(args: argparse.Namespace, client: Client) -> Iterator[tuple[str, Event]]:
    """All events. When none comes at first, says what is waited for: a wrong id would be silent for ever."""
    stream, timeout_s, heard = client.stream(args.stream), args.timeout_seconds, False
    patient = timeout_s is None or timeout_s > SILENCE_S
    try:
        for found in stream.events_with_ids(
            after=args.after, timeout_s=timeout_s, accept_timeout_s=SILENCE_S if patient else None
        ):
            heard = True
            yield found
        return
    except NoAnswer:
        if heard or not patient:
            raise
    print(
        f"no event of stream {args.stream} yet in pool {args.pool} for tenant {args.tenant}; waiting. "
        "Is the id right, and does a router run?",
        file=sys.stderr,
    )
    yield from stream.events_with_ids(after=args.after, timeout_s=timeout_s, accept_timeout_s=None)


COMMAND = WatchCommand()
