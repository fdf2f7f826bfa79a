"""`stream2llm ask`: a question, with documents streamed into its context."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from stream2llm import settings
from stream2llm.client import Client, Stream
from stream2llm.commands.connected import with_client
from stream2llm.commands.interrupting import interrupted_by_signals
from stream2llm.composing import Answer, AnswerBuilder, as_error, new_id
from stream2llm.connecting import add_redis_arguments
from stream2llm.errors import Stream2LLMError
from stream2llm.events import ErrorEvent, Token

INSTRUCTION = "Answer the question from the context.\n\n{}\n\nQuestion: "


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
    if args.delay_ms < 0:
        raise ValueError(f"--delay-ms must not be negative, not {args.delay_ms}")
    documents = [(Path(name).name, _read(name)) for name in args.doc]
    # A question may hold any text, the usual marker too.
    marker = f"{{context {new_id()}}}"
    started_s = time.monotonic()
    stream = client.stream(new_id())
    opened = False
    try:
        with interrupted_by_signals():
            client.open(
                messages=[{"role": "user", "content": INSTRUCTION.format(marker) + args.question}],
                params={"max_tokens": args.max_tokens, "temperature": 0},
                options={"marker": marker},
                stream=stream.name,
            )
            opened = True
            _send_documents(args, stream, documents)
            answer, first_token_s = _print_answer(args, stream, started_s)
    except (KeyboardInterrupt, BrokenPipeError, Stream2LLMError, OSError) as error:
        # Nobody reads on, so the pod need not wait or go on answering. It has ended by itself after most errors. An
        # open that was interrupted may have been written.
        if opened or isinstance(error, KeyboardInterrupt):
            with contextlib.suppress(Stream2LLMError):
                stream.cancel()
        raise
    if args.json:
        print(json.dumps(_figures(stream.name, answer, first_token_s)))
    else:
        shown = [f"{name}={value}" for name, value in answer.timings.items() if value is not None]
        first = "no token" if first_token_s is None else f"first token after {first_token_s:.2f} s"
        print(f"{first}; {' '.join(shown)}", file=sys.stderr)
    return 0


def _figures(stream: str, answer: Answer, first_token_s: float | None) -> dict[str, Any]:
    return {
        "stream": stream,
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "usage": answer.usage,
        "timings": answer.timings,
        "first_token_s": first_token_s,
        "warnings": [str(warning) for warning in answer.warnings],
    }


def _read(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8 text (byte {error.start})") from None


def _send_documents(args: argparse.Namespace, stream: Stream, documents: list[tuple[str, str]]) -> None:
    names = [f"{position}-{name}"[: settings.MAX_ID_CHARS] for position, (name, _) in enumerate(documents)]
    for position, (_, text) in enumerate(documents):
        time.sleep(args.delay_ms / 1000)
        if args.update:
            # What was sent before comes by its id alone.
            known = [{"id": name} for name in names[:position]]
            stream.update([*known, {"id": names[position], "text": text}], version=position)
        else:
            stream.append(text, chunk=names[position])
    stream.finish()


def _print_answer(args: argparse.Namespace, stream: Stream, started_s: float) -> tuple[Answer, float | None]:
    """Print the answer as it comes, unless JSON is asked for. Returns it and the seconds to its first token."""
    builder = AnswerBuilder()
    first_token_s, printed = None, False
    try:
        for event in stream.events(timeout_s=args.timeout_seconds):
            if isinstance(event, Token):
                first_token_s = time.monotonic() - started_s if first_token_s is None else first_token_s
                if not args.json:
                    print(event.text, end="", flush=True)
                    printed = True
            elif isinstance(event, ErrorEvent) and not event.terminal:
                print(f"left out: {as_error(event)}", file=sys.stderr)
            builder.take(event)
    finally:
        if printed:
            print(flush=True)
    return builder.complete(), first_token_s


COMMAND = AskCommand()
