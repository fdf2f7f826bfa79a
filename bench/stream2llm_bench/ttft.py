"""`bench ttft`: how long until the first token when a prompt arrives piece by piece.

Three ways to answer the same prompts, on this machine, with SmolLM2: our streams; the same engine, asked once the
prompt is whole; stock vLLM's own streaming input, fed the same pieces. They take turns within one run.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stream2llm_bench.arriving import Arrivals, draw_arrivals
from stream2llm_bench.comparing import Ratio, ratio_of_pairs
from stream2llm_bench.demo.pool import LOCAL_ONLY
from stream2llm_bench.failing import Unavailable
from stream2llm_bench.progress import Say
from stream2llm_bench.reporting import Report, Table

STREAMING, WAITING, STOCK = "Stream2LLM, streaming", "same engine, waiting", "stock vLLM, streaming input"
WAYS = (STREAMING, WAITING, STOCK)
CHUNKS, CHUNK_TOKENS, CHUNK_SPREAD, GAP_S = 8, 100, 0.2, 0.7
OUTPUT_TOKENS = 8
MODEL_LENGTH_TOKENS = 4096
MAX_CHUNK_TOKENS = int(MODEL_LENGTH_TOKENS / CHUNKS / (1 + CHUNK_SPREAD)) - OUTPUT_TOKENS
KV_CACHE_GIB = "1"
COMMON_ARGUMENTS: dict[str, Any] = {
    "dtype": "float32",
    "block_size": 32,
    "max_model_len": MODEL_LENGTH_TOKENS,
    "max_num_seqs": 8,
    "enable_prefix_caching": False,
    # Compiling takes minutes and gains nothing for a model of this size.
    "enforce_eager": True,
    "seed": 0,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: when its first token came, in seconds after the retrieval's start and after the finish."""

    asker_s: float
    ttft_s: float
    tokens: tuple[int, ...]


@dataclass(slots=True)
class Series:
    """All answers of one way, one per pair."""

    answers: list[Answer] = field(default_factory=list)

    @property
    def asker_s(self) -> list[float]:
        return [answer.asker_s for answer in self.answers]

    @property
    def ttft_s(self) -> list[float]:
        return [answer.ttft_s for answer in self.answers]

    @property
    def finish_s(self) -> list[float]:
        """When each retrieval was over: no answer can come sooner."""
        return [answer.asker_s - answer.ttft_s for answer in self.answers]


class TTFTBench:
    """Time to first token with a real model."""

    name = "ttft"
    help = "time to first token: streaming against waiting, and against vLLM's own streaming input"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--pairs", type=int, default=7, metavar="N", help="interleaved repetitions (default 7)")
        parser.add_argument("--seed", type=int, default=1, help="of the first pair; later ones count up (default 1)")
        parser.add_argument(
            "--chunk-tokens",
            type=int,
            default=CHUNK_TOKENS,
            metavar="N",
            help=f"mean length of a chunk, at most {MAX_CHUNK_TOKENS} (default {CHUNK_TOKENS})",
        )
        parser.add_argument("--policy", default="srpf", help="of our scheduler (default srpf)")

    def run(self, args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
        if args.pairs < 1:
            raise Unavailable(f"--pairs must be at least 1, not {args.pairs}")
        if not 2 <= args.chunk_tokens <= MAX_CHUNK_TOKENS:
            raise Unavailable(f"--chunk-tokens must be from 2 to {MAX_CHUNK_TOKENS}, not {args.chunk_tokens}")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", KV_CACHE_GIB)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.update(LOCAL_ONLY)
        measured = asyncio.run(_measure(args, progress))
        # vLLM's engines end themselves once more when they are collected, which fails while Python shuts down.
        gc.collect()
        return make_report(measured, args)


def make_report(measured: dict[str, Series], args: argparse.Namespace) -> Report:
    """Figures, tables and plot of the measured series."""
    ours, waiting, stock = (measured[way] for way in WAYS)
    asker = ratio_of_pairs(waiting.asker_s, ours.asker_s)
    ttft = ratio_of_pairs(waiting.ttft_s, ours.ttft_s)
    asker_stock = ratio_of_pairs(stock.asker_s, ours.asker_s)
    ttft_stock = ratio_of_pairs(stock.ttft_s, ours.ttft_s)
    best = ratio_of_pairs(waiting.asker_s, waiting.finish_s)
    figures: dict[str, Any] = {}
    ratios: dict[str, tuple[Ratio, str]] = {
        "asker_ratio_vs_waiting": (asker, "first token seen by the asker, waiting ÷ streaming"),
        "asker_ratio_bound": (
            best,
            "first token seen by the asker, waiting ÷ end of the retrieval: no engine does better",
        ),
        "ttft_ratio_vs_waiting": (ttft, "first token after the finish, waiting ÷ streaming"),
        "asker_ratio_vs_stock_streaming": (asker_stock, "first token seen by the asker, stock streaming ÷ ours"),
        "ttft_ratio_vs_stock_streaming": (ttft_stock, "first token after the finish, stock streaming ÷ ours"),
    }
    for key, (ratio, _) in ratios.items():
        figures[key] = round(ratio.median, 3)
        figures[f"{key}_spread"] = [round(value, 3) for value in ratio.spread]
    figures["asker_s"] = {way: round(statistics.median(measured[way].asker_s), 3) for way in WAYS}
    figures["ttft_s"] = {way: round(statistics.median(measured[way].ttft_s), 3) for way in WAYS}
    figures["pairs"] = len(ours.answers)
    figures["chunk_tokens"] = args.chunk_tokens
    figures["tokens_equal"] = True
    times = Table(
        f"Time to first token, {len(ours.answers)} interleaved pairs: {CHUNKS} chunks of about {args.chunk_tokens} "
        f"tokens, "
        f"one every {GAP_S} s",
        ("way", "asker, median s", "lowest", "highest", "after finish, median s", "lowest", "highest"),
        [(way, *_three(measured[way].asker_s), *_three(measured[way].ttft_s)) for way in WAYS],
    )
    table = Table(
        "Ratios within the pairs (above 1: ours is faster)",
        ("ratio", "median", "lowest", "highest"),
        [(text, f"{r.median:.2f}", f"{r.low:.2f}", f"{r.high:.2f}") for r, text in ratios.values()],
    )
    return Report(
        name="ttft",
        figures=figures,
        tables=(times, table),
        plot=lambda path: draw(measured, path),
        notes=("All ways gave the same tokens in every pair.",),
    )


def _three(values: Sequence[float]) -> tuple[str, str, str]:
    return f"{statistics.median(values):.3f}", f"{min(values):.3f}", f"{max(values):.3f}"


def draw(measured: dict[str, Series], path: Path) -> None:
    """Both times of every way, a dot per pair and a bar for the median."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colours = ("#1b6ca8", "#c05621", "#6b7280")
    figure, panels = pyplot.subplots(1, 2, figsize=(11, 3.4), sharey=True)
    for panel, title, pick in (
        (panels[0], "what the asker waits, from the start of the retrieval", "asker_s"),
        (panels[1], "after the finish", "ttft_s"),
    ):
        for row, (way, colour) in enumerate(zip(WAYS, colours, strict=True)):
            values = getattr(measured[way], pick)
            median = statistics.median(values)
            panel.barh(row, median, color=colour, alpha=0.35, height=0.62)
            panel.scatter(values, [row] * len(values), s=16, color=colour, zorder=3)
            panel.annotate(
                f"{median:.2f} s",
                (max([*values, median]), row),
                xytext=(7, 0),
                textcoords="offset points",
                va="center",
                fontsize=10,
            )
        panel.set_yticks(range(len(WAYS)), WAYS)
        panel.set_xlim(0, 1.18 * max(max(getattr(measured[way], pick)) for way in WAYS))
        panel.set_xlabel("seconds to the first token")
        panel.set_title(title, fontsize=11)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].axvline(statistics.median(measured[STREAMING].finish_s), color="black", linewidth=1, linestyle="--")
    panels[0].invert_yaxis()
    figure.supxlabel(
        f"Bars: medians; dots: {len(measured[STREAMING].answers)} interleaved pairs; dashed: the retrieval is over",
        fontsize=9,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


async def _measure(args: argparse.Namespace, say: Say) -> dict[str, Series]:
    from stream2llm_bench.demo.model import ensure_model
    from stream2llm_bench.requiring import check_vllm_can_load

    check_vllm_can_load()
    model = ensure_model(say)
    text = _documentation_tokens(model)
    say("loading the model into two engines, ours and a stock one (about a minute)")
    ours, stock = _start_engine(model, args.policy), _start_engine(model, None)
    try:
        from stream2llm_pod.engine.frontend import EngineStreams

        streams = EngineStreams(ours)
        ways: dict[str, Callable[[str, Arrivals], Any]] = {
            STREAMING: lambda name, arrivals: answer_streaming(streams, name, arrivals),
            WAITING: lambda name, arrivals: answer_waiting(ours, name, arrivals),
            STOCK: lambda name, arrivals: answer_stock_streaming(stock, name, arrivals),
        }
        say("warming up")
        for way in WAYS:
            warm = draw_arrivals(text, -1, chunks=2, chunk_tokens=args.chunk_tokens, spread=CHUNK_SPREAD, gap_s=0.1)
            await ways[way](f"warm-{way}", warm)
        measured = {way: Series() for way in WAYS}
        for pair in range(args.pairs):
            arrivals = draw_arrivals(
                text,
                args.seed + pair,
                chunks=CHUNKS,
                chunk_tokens=args.chunk_tokens,
                spread=CHUNK_SPREAD,
                gap_s=GAP_S,
            )
            # Each way goes first as often as the others, so that a drift of the machine favours none.
            for way in (*WAYS[pair % len(WAYS) :], *WAYS[: pair % len(WAYS)]):
                measured[way].answers.append(await ways[way](f"{pair}-{way}", arrivals))
            last = {way: measured[way].answers[-1] for way in WAYS}
            if len({answer.tokens for answer in last.values()}) != 1:
                tokens = {way: answer.tokens for way, answer in last.items()}
                raise Unavailable(f"the ways do not give the same tokens, so their times mean nothing: {tokens}")
            shown = ", ".join(f"{way} {answer.asker_s:.2f} s" for way, answer in last.items())
            say(f"pair {pair + 1} of {args.pairs}: {shown}")
        return measured
    finally:
        ours.shutdown()
        stock.shutdown()


def _documentation_tokens(model: Path) -> list[int]:
    from tokenizers import Tokenizer

    from stream2llm_bench.demo.crawling import documentation_folder

    checkout = documentation_folder()
    documents = [checkout / "README.md", *sorted((checkout / "docs").glob("*.md"))]
    text = "\n\n".join(document.read_text(encoding="utf-8") for document in documents if document.is_file())
    ids: list[int] = Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).ids
    return ids


def _start_engine(model: Path, policy: str | None) -> Any:
    """An engine with our scheduler under `policy`, or a stock one for None."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    own: dict[str, Any] = {"async_scheduling": False}
    if policy is not None:
        from stream2llm_pod.engine.arguments import engine_arguments
        from stream2llm_pod.engine.configuring import EngineSettings

        own = engine_arguments(EngineSettings(policy=policy), async_scheduling=False)
    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(model=str(model), disable_log_stats=True, **COMMON_ARGUMENTS, **own)
    )


def _params(max_tokens: int) -> Any:
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    return SamplingParams(
        temperature=0.0, max_tokens=max_tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA, detokenize=False
    )


async def answer_streaming(streams: Any, name: str, arrivals: Arrivals) -> Answer:
    """Every chunk goes to the engine as it arrives; the last one comes with the finish."""
    started = time.monotonic()
    outputs: AsyncIterator[Any] | None = None
    for chunk, after_s in zip(arrivals.chunks[:-1], arrivals.after_s[:-1], strict=True):
        await _sleep_until(started + after_s)
        if outputs is None:
            outputs = await streams.open(name, chunk, _params(OUTPUT_TOKENS))
        else:
            await streams.append(name, chunk)
    await _sleep_until(started + arrivals.finish_s)
    if outputs is None:
        raise ValueError("streaming needs at least two chunks")
    await streams.finish(name, arrivals.prompt)
    return await _read(outputs, started, arrivals, skipped_tokens=0)


async def answer_waiting(engine: Any, name: str, arrivals: Arrivals) -> Answer:
    """The engine sees the prompt once it is whole."""
    started = time.monotonic()
    await _sleep_until(started + arrivals.finish_s)
    outputs = engine.generate({"prompt_token_ids": arrivals.prompt}, _params(OUTPUT_TOKENS), name)
    return await _read(outputs, started, arrivals, skipped_tokens=0)


async def answer_stock_streaming(engine: Any, name: str, arrivals: Arrivals) -> Answer:
    """vLLM's own streaming input. It samples one token per chunk, which the caller has to drop."""
    from vllm.engine.protocol import StreamingInput

    started = time.monotonic()

    async def pieces() -> AsyncGenerator[Any, None]:
        last = len(arrivals.chunks) - 1
        for index, (chunk, after_s) in enumerate(zip(arrivals.chunks, arrivals.after_s, strict=True)):
            await _sleep_until(started + after_s)
            params = _params(OUTPUT_TOKENS if index == last else 1)
            yield StreamingInput({"prompt_token_ids": list(chunk)}, params)

    outputs = engine.generate(pieces(), _params(OUTPUT_TOKENS), name)
    return await _read(outputs, started, arrivals, skipped_tokens=len(arrivals.chunks) - 1)


async def _read(outputs: AsyncIterator[Any], started: float, arrivals: Arrivals, *, skipped_tokens: int) -> Answer:
    tokens: list[int] = []
    first: float | None = None
    async for output in outputs:
        for completion in output.outputs:
            tokens += completion.token_ids
        if first is None and len(tokens) > skipped_tokens:
            first = time.monotonic()
    if first is None:
        raise Unavailable("the engine ended an answer without a token")
    return Answer(first - started, first - started - arrivals.finish_s, tuple(tokens[skipped_tokens:]))


async def _sleep_until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - time.monotonic()))


BENCH = TTFTBench()
