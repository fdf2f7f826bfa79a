"""`bench prefix`: the longest common prefix of two long prompts beside a raw comparison of the same memory."""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stream2llm_bench.comparing import ratio_of_pairs
from stream2llm_bench.reporting import Report, Table
from stream2llm_pod.scheduling.prefix import common_prefix_tokens, to_tokens

MEMCMP, PREFIX, CONVERT = "memcmp", "common_prefix_tokens", "list to array"


@dataclass(slots=True)
class Timings:
    """Microseconds a call: what each pair took, and the conversion of one prompt from a list."""

    tokens: int
    prefix_us: list[float] = field(default_factory=list)
    memcmp_us: list[float] = field(default_factory=list)
    convert_us: list[float] = field(default_factory=list)


class PrefixBench:
    name = "prefix"
    help = "longest common prefix of two prompts that differ in the last token, beside memcmp on the same bytes"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--tokens", type=int, default=128 * 1024, help="length of both prompts (default: 131072)")
        parser.add_argument("--pairs", type=int, default=51, help="interleaved pairs of measurements (default: 51)")

    def run(self, args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
        if args.tokens < 2 or args.pairs < 1:
            raise ValueError(f"--tokens must be at least 2 and --pairs at least 1, not {args.tokens} and {args.pairs}")
        progress(f"comparing two prompts of {args.tokens} tokens, {args.pairs} pairs")
        timings = measure(args.tokens, args.pairs)
        ratio = ratio_of_pairs(timings.prefix_us, timings.memcmp_us)
        rows = [
            _row(MEMCMP, timings.memcmp_us),
            _row(PREFIX, timings.prefix_us),
            _row(CONVERT, timings.convert_us),
        ]
        return Report(
            self.name,
            {
                "ratio_vs_memcmp": round(ratio.median, 3),
                "ratio_vs_memcmp_spread": [round(bound, 3) for bound in ratio.spread],
                "tokens": args.tokens,
                "pairs": args.pairs,
                "prefix_us": round(statistics.median(timings.prefix_us), 2),
                "memcmp_us": round(statistics.median(timings.memcmp_us), 2),
                "conversion_us": round(statistics.median(timings.convert_us), 2),
            },
            [
                Table(
                    f"Two prompts of {args.tokens} tokens that differ in the last", ("", "median", "low", "high"), rows
                )
            ],
            lambda path: draw(timings, path),
            [f"ratio to memcmp, median of pairs (lowest to highest): {ratio}"],
        )


def measure(tokens: int, pairs: int) -> Timings:
    """Time both in turn, each pair back to back, so that both see the same machine."""
    memcmp = ctypes.CDLL(None).memcmp
    memcmp.argtypes, memcmp.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
    token_ids = np.random.default_rng(0).integers(0, 128_000, tokens).tolist()
    old, new = to_tokens(token_ids), to_tokens(token_ids)
    new[-1] ^= 1
    if common_prefix_tokens(old, new) != tokens - 1:
        raise AssertionError("the longest common prefix is wrong")
    addresses, size_bytes = (old.ctypes.data, new.ctypes.data), old.nbytes
    timings = Timings(tokens)
    repeats = max(1, 2_000_000 // tokens)
    for _ in range(pairs):
        timings.memcmp_us.append(_time_us(lambda: memcmp(*addresses, size_bytes), repeats))
        timings.prefix_us.append(_time_us(lambda: common_prefix_tokens(old, new), repeats))
        timings.convert_us.append(_time_us(lambda: to_tokens(token_ids), 1))
    return timings


def _time_us(act: Callable[[], object], repeats: int) -> float:
    started = time.perf_counter()
    for _ in range(repeats):
        act()
    return 1e6 * (time.perf_counter() - started) / repeats


def _row(name: str, durations_us: Sequence[float]) -> tuple[str, str, str, str]:
    low, middle, high = min(durations_us), statistics.median(durations_us), max(durations_us)
    return name, f"{middle:.1f} µs", f"{low:.1f}", f"{high:.1f}"


def draw(timings: Timings, path: Path) -> None:
    """Both comparisons as boxes over the pairs, microseconds a call."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3))
    axes.boxplot([timings.memcmp_us, timings.prefix_us], orientation="horizontal", widths=0.6)
    axes.set_yticks([1, 2], [MEMCMP, PREFIX])
    axes.set_xlim(left=0)
    axes.set_xlabel(f"µs for {timings.tokens} tokens")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


BENCH = PrefixBench()
