"""`stream2llm demo`: one question about crawled pages, streaming and waiting side by side."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream2llm_pod.scheduling.policies import POLICIES

if TYPE_CHECKING:
    from stream2llm_bench.demo.asking import Asked, Mode
    from stream2llm_bench.progress import Say

DEFAULT_PAGES = 8
QUESTION = "How soon does the first token of the answer come?"
DEFAULT_SEED = 1
MIN_PAGES = 2
"""One page that arrives is a prompt that arrives: there is nothing to stream."""
MAX_PAGES = 10
"""About 3,000 tokens; the longest prompt of the pool has 4,096."""


class DemoCommand:
    """Sub-command `demo`."""

    help = "everything on one machine: asks a question streaming and waiting, and shows both answers and times"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print the figures as one JSON object on stdout")
        parser.add_argument(
            "--policy",
            choices=list(POLICIES),
            default="srpf",
            metavar="P",
            help=f"scheduling policy of the pod: {', '.join(POLICIES)} (default srpf)",
        )
        parser.add_argument(
            "--seed",
            type=int,
            default=DEFAULT_SEED,
            metavar="N",
            help=f"of the pages' delays (default {DEFAULT_SEED})",
        )
        parser.add_argument(
            "--pages",
            type=_pages,
            default=DEFAULT_PAGES,
            metavar="N",
            help=f"pages to crawl, {MIN_PAGES} to {MAX_PAGES} (default {DEFAULT_PAGES})",
        )
        parser.add_argument("--question", default=QUESTION, help=f"asked about the pages (default: {QUESTION!r})")

    def run(self, args: argparse.Namespace) -> int:
        from stream2llm.errors import Stream2LLMError
        from stream2llm_bench.failing import Unavailable
        from stream2llm_bench.progress import Progress

        # Otherwise a plain kill would leave the children running.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda received, _: sys.exit(128 + received))
        try:
            asked = _run(args, Progress())
        except (Unavailable, Stream2LLMError) as error:
            print(f"stream2llm demo: {error}", file=sys.stderr)
            return 1
        print(json.dumps(figures(asked)) if args.json else to_text(args.question, asked))
        if not all(way.text == pair[0].text for pair in asked.values() for way in pair):
            print("stream2llm demo: the answers differ, which must not happen", file=sys.stderr)
            return 1
        return 0


def _pages(text: str) -> int:
    if not text.isdecimal() or not MIN_PAGES <= int(text) <= MAX_PAGES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of pages from {MIN_PAGES} to {MAX_PAGES}")
    return int(text)


def figures(asked: dict[Mode, tuple[Asked, Asked]]) -> dict[str, Any]:
    """What `--json` prints: by mode, from (streaming, waiting)."""
    return {
        str(mode): {
            "answers_equal": streaming.text == waiting.text,
            "streaming_s": round(streaming.first_token_s, 3),
            "waiting_s": round(waiting.first_token_s, 3),
            "ratio": round(waiting.first_token_s / streaming.first_token_s, 3),
            "answer": streaming.text,
        }
        for mode, (streaming, waiting) in asked.items()
    }


def to_text(question: str, asked: dict[Mode, tuple[Asked, Asked]]) -> str:
    """The answers and the table."""
    from stream2llm_bench.reporting import Table

    lines = ["", f"Question: {question}", ""]
    for mode, (streaming, waiting) in asked.items():
        same = "the same text" if streaming.text == waiting.text else "DIFFERENT TEXTS"
        lines += [
            f"{mode}: {same}",
            f"  streaming: {streaming.text.strip()}",
            f"  waiting:   {waiting.text.strip()}",
            "",
        ]
    table = Table(
        "Seconds from the start of the crawl until the asker sees the first token",
        ("mode", "streaming", "waiting", "waiting ÷ streaming", "answers"),
        [
            (
                str(mode),
                f"{streaming.first_token_s:.2f}",
                f"{waiting.first_token_s:.2f}",
                f"{waiting.first_token_s / streaming.first_token_s:.2f}",
                "equal" if streaming.text == waiting.text else "different",
            )
            for mode, (streaming, waiting) in asked.items()
        ],
    )
    return "\n".join([*lines, table.to_text()])


def _run(args: argparse.Namespace, say: Say) -> dict[Mode, tuple[Asked, Asked]]:
    from stream2llm_bench.demo.asking import Asker, Mode, search_order
    from stream2llm_bench.demo.crawling import DocumentationServer, documentation_folder, load_pages, page_delays
    from stream2llm_bench.demo.model import ensure_model
    from stream2llm_bench.demo.pool import running_pool
    from stream2llm_bench.demo.ranking import rank
    from stream2llm_bench.demo.working import work_folder
    from stream2llm_bench.requiring import check_vllm_can_load

    check_vllm_can_load()
    pages = load_pages(documentation_folder(), args.pages)
    model: Path = ensure_model(say)
    ranking = rank(args.question, {index: f"{page.title} {page.text}" for index, page in enumerate(pages)})
    delays_s = page_delays(args.seed, args.pages)
    asked = {}
    with (
        work_folder(say) as work,
        running_pool(model, args.policy, work, say) as client,
        DocumentationServer(pages, delays_s) as server,
    ):
        asker = Asker(client, server.urls, search_order(ranking, args.seed), args.question, say)
        say("warming up")
        asker.warm_up()
        for mode in Mode:
            pair = []
            for streaming in (True, False):
                way = "streaming" if streaming else "waiting"
                say(f"{mode}, {way}: {args.pages} pages, {sum(delays_s):.1f} s of crawling")
                pair.append(asker.ask(mode, streaming=streaming))
                say(f"    {pair[-1].first_token_s:5.1f} s  first token")
            asked[mode] = (pair[0], pair[1])
        say("stopping the pool")
    return asked


COMMAND = DemoCommand()
