"""`stream2llm ask`: a question, with documents streamed into its context."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from stream2llm.client import Client, Stream
from stream2llm.commands.connected import with_client
from stream2llm.composing import AnswerBuilder
from stream2llm.connecting import add_redis_arguments
from stream2llm.events import Token


class AskCommand:
    help = "ask a question while its documents are still arriving"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("question")
        parser.add_argument("--doc", action="append", default=[], metavar="FILE", help="a document; may be repeated")
        parser.add_argument("--delay-ms", type=int, default=0, metavar="N", help="wait before each document")
        parser.add_argument("--update", action="store_true", help="replace the whole context instead of appending")
        parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="length of the answer")
        parser.add_argument("--timeout-seconds", type=float, default=120, metavar="N", help="longest silence")
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        add_redis_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        return with_client(args, lambda client: _ask(args, client))


def _ask(args: argparse.Namespace, client: Client) -> int:
    documents = [(Path(name).name, Path(name).read_text()) for name in args.doc]
    content = "Answer the question from the context.\n\n{context}\n\nQuestion: " + args.question
    started_s = time.monotonic()
    stream = client.open(
        messages=[{"role": "user", "content": content}], params={"max_tokens": args.max_tokens, "temperature": 0}
    )
    try:
        _send_documents(args, stream, documents)
        builder, first_s = AnswerBuilder(), None
        for event in stream.events(timeout_s=args.timeout_seconds):
            if isinstance(event, Token):
                first_s = first_s or time.monotonic() - started_s
                if not args.json:
                    print(event.text, end="", flush=True)
            builder.take(event)
    except KeyboardInterrupt:
        stream.cancel()
        raise
    answer = builder.answer
    assert answer is not None
    if args.json:
        print(json.dumps({"text": answer.text, "usage": answer.usage, "timings": answer.timings}))
    else:
        print()
        shown = "  ".join(f"{name} {value}" for name, value in answer.timings.items() if value is not None)
        print(f"first token after {first_s or 0:.2f} s  {shown}", file=sys.stderr)
    for warning in answer.warnings:
        print(f"left out: {warning}", file=sys.stderr)
    return 0


def _send_documents(args: argparse.Namespace, stream: Stream, documents: list[tuple[str, str]]) -> None:
    for position in range(len(documents)):
        time.sleep(args.delay_ms / 1000)
        if args.update:
            stream.update([(f"{i}-{name}"[:128], text) for i, (name, text) in enumerate(documents[: position + 1])])
        else:
            stream.append(documents[position][1], chunk=f"{position}-{documents[position][0]}"[:128])
    stream.finish()


COMMAND = AskCommand()
