"""`stream2llm send`: one raw ingress entry."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from stream2llm import settings
from stream2llm.client import Client
from stream2llm.commands.connected import with_client
from stream2llm.connecting import add_redis_arguments


class SendCommand:
    help = "write one entry to the ingress stream, as it is"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("op", help="open, append, update, finish or cancel")
        parser.add_argument("stream", help="stream id")
        parser.add_argument(
            "fields",
            nargs="*",
            metavar="FIELD=VALUE",
            help="VALUE may be @FILE, or - for standard input; nothing is checked here",
        )
        add_redis_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        return with_client(args, lambda client: _send(args, client))


def _send(args: argparse.Namespace, client: Client) -> int:
    fields = {b"stream": os.fsencode(args.stream), b"op": os.fsencode(args.op)}
    for assignment in args.fields:
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise ValueError(f"{assignment!r} is not FIELD=VALUE")
        fields[os.fsencode(name)] = _value(value)
    # An append without a chunk id that was written although its answer was lost must not be written again.
    print(client.send(fields, tries=settings.SEND_TRIES if b"chunk" in fields else 1))
    return 0


def _value(value: str) -> bytes:
    if value == "-":
        return sys.stdin.buffer.read()
    if value.startswith("@"):
        return Path(value[1:]).read_bytes()
    return os.fsencode(value)


COMMAND = SendCommand()
