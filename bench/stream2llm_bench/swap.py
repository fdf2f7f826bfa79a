"""`bench swap`: KV blocks out to the host pool and back, beside one raw torch copy of the same bytes."""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stream2llm_bench.comparing import Ratio, ratio_of_pairs
from stream2llm_bench.reporting import Report, Table

# SmolLM2-135M on vLLM's CPU backend: 30 layers of 3 KV heads with 64 keys and 64 values each, float32, 32 tokens in a
# block.
LAYERS = 30
LAYER_BLOCK_BYTES = 2 * 3 * 64 * 4 * 32
BLOCK_BYTES = LAYERS * LAYER_BLOCK_BYTES
LARGE_BLOCKS = 256
DIRECTIONS = ("out", "in")
CONTIGUOUS, FRAGMENTED = "one run of slots", "every second slot"


@dataclass(slots=True)
class Series:
    """Seconds for each pair, in each direction: ours, and the raw copy beside it."""

    blocks: int
    slots: str
    ours_s: dict[str, list[float]] = field(default_factory=lambda: {direction: [] for direction in DIRECTIONS})
    raw_s: dict[str, list[float]] = field(default_factory=lambda: {direction: [] for direction in DIRECTIONS})

    @property
    def megabytes(self) -> float:
        return self.blocks * BLOCK_BYTES / 1e6

    def ratio(self, direction: str) -> Ratio:
        """Our bandwidth by the raw copy's."""
        return ratio_of_pairs(self.raw_s[direction], self.ours_s[direction])


class SwapBench:
    name = "swap"
    help = "KV blocks to host memory and back, beside one raw torch copy of the same bytes"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--blocks",
            type=_numbers,
            default=(16, 64, 256),
            metavar="N,N,…",
            help="how many blocks at a time, of 1.5 MB each (default: 16,64,256)",
        )
        parser.add_argument("--pairs", type=int, default=11, help="interleaved pairs of measurements (default: 11)")

    def run(self, args: argparse.Namespace, progress: Callable[[str], None]) -> Report:
        if args.pairs < 1:
            raise ValueError(f"--pairs must be at least 1, not {args.pairs}")
        measured = measure(args.blocks, args.pairs, progress)
        large = [series for series in measured if series.blocks >= LARGE_BLOCKS and series.slots == CONTIGUOUS]
        figures: dict[str, Any] = {}
        for direction in DIRECTIONS:
            # The worst of the large ones.
            ratios = [series.ratio(direction) for series in large]
            worst = min(ratios, key=lambda ratio: ratio.median, default=None)
            figures[f"bandwidth_ratio_{direction}"] = None if worst is None else round(worst.median, 3)
            figures[f"bandwidth_ratio_{direction}_spread"] = (
                None if worst is None else [round(bound, 3) for bound in worst.spread]
            )
        figures["pairs"] = args.pairs
        figures["block_bytes"] = BLOCK_BYTES
        figures["series"] = [_figures(series) for series in measured]
        return Report(
            self.name,
            figures,
            [
                Table(
                    "Bandwidth of block copies (GB/s; ratio to a raw torch copy, lowest to highest)",
                    ("blocks", "MB", "slots", "raw", "out", "ratio", "in", "ratio"),
                    [_row(series) for series in measured],
                )
            ],
            lambda path: draw(measured, path),
            [
                f"{LAYERS} layers of {LAYER_BLOCK_BYTES} bytes a block, blocks scattered over the KV cache, "
                f"{args.pairs} pairs"
            ],
        )


def measure(blocks: Sequence[int], pairs: int, progress: Callable[[str], None]) -> list[Series]:
    """Each pair back to back, so that both see the same machine. Checks first that the bytes come back."""
    import torch

    from stream2llm_pod.engine.swap.backend import make_backend

    most = max(blocks)
    cache_blocks = most + most // 2
    # Layer by layer, as the CPU backend lays it out.
    cache = torch.randint(-128, 128, (LAYERS, cache_blocks, LAYER_BLOCK_BYTES), dtype=torch.int8)
    backend = make_backend(list(cache), most)
    source = torch.randint(-128, 128, (most * BLOCK_BYTES,), dtype=torch.int8)
    target = torch.zeros_like(source)
    chooser = random.Random(0)
    measured = []
    for count, slots in [(n, CONTIGUOUS) for n in blocks] + [(n, FRAGMENTED) for n in blocks if 2 * n <= most]:
        progress(f"{count} blocks ({count * BLOCK_BYTES / 1e6:.0f} MB), {slots}")
        block_ids = chooser.sample(range(cache_blocks), count)
        slot_ids = list(range(count)) if slots == CONTIGUOUS else list(range(0, 2 * count, 2))
        before = cache[:, block_ids].clone()
        backend.copy_out(block_ids, slot_ids)
        cache[:, block_ids] = 0
        backend.copy_in(slot_ids, block_ids)
        if not torch.equal(cache[:, block_ids], before):
            raise AssertionError("the bytes that came back are others")
        del before
        series = Series(count, slots)
        raw_from, raw_to = source[: count * BLOCK_BYTES], target[: count * BLOCK_BYTES]
        acts: dict[str, Callable[[], object]] = {
            "out": lambda: backend.copy_out(block_ids, slot_ids),  # noqa: B023
            "in": lambda: backend.copy_in(slot_ids, block_ids),  # noqa: B023
        }
        for _ in range(pairs):
            for direction, act in acts.items():
                series.raw_s[direction].append(_time_s(lambda: raw_to.copy_(raw_from)))  # noqa: B023
                series.ours_s[direction].append(_time_s(act))
        measured.append(series)
    backend.close()
    return measured


def _time_s(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def _figures(series: Series) -> dict[str, Any]:
    figures: dict[str, Any] = {"blocks": series.blocks, "slots": series.slots}
    for direction in DIRECTIONS:
        ratio = series.ratio(direction)
        figures[f"ratio_{direction}"] = round(ratio.median, 3)
        figures[f"ratio_{direction}_spread"] = [round(bound, 3) for bound in ratio.spread]
        figures[f"ms_{direction}"] = round(1e3 * statistics.median(series.ours_s[direction]), 3)
        figures[f"raw_ms_{direction}"] = round(1e3 * statistics.median(series.raw_s[direction]), 3)
    return figures


def _row(series: Series) -> tuple[str, ...]:
    def bandwidth(durations_s: Sequence[float]) -> str:
        return f"{series.megabytes / 1e3 / statistics.median(durations_s):.1f}"

    raw_s = [*series.raw_s["out"], *series.raw_s["in"]]
    cells = [str(series.blocks), f"{series.megabytes:.0f}", series.slots, bandwidth(raw_s)]
    for direction in DIRECTIONS:
        cells += [bandwidth(series.ours_s[direction]), str(series.ratio(direction))]
    return tuple(cells)


def draw(measured: Sequence[Series], path: Path) -> None:
    """The ratio in both directions by the number of blocks, with the spread over the pairs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for slots, style in ((CONTIGUOUS, "-"), (FRAGMENTED, ":")):
        chosen = [series for series in measured if series.slots == slots]
        for direction, colour in zip(DIRECTIONS, ("tab:blue", "tab:orange"), strict=True):
            if not chosen:
                continue
            ratios = [series.ratio(direction) for series in chosen]
            blocks = [series.blocks for series in chosen]
            axes.plot(
                blocks, [r.median for r in ratios], style, marker="o", color=colour, label=f"{direction}, {slots}"
            )
            axes.fill_between(blocks, [r.low for r in ratios], [r.high for r in ratios], color=colour, alpha=0.1)
    axes.axhline(0.8, color="grey", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("blocks copied at a time")
    axes.set_ylabel("bandwidth by that of a raw copy")
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be whole numbers separated by commas, not {text!r}") from None
    if not numbers or numbers[0] < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1 each, not {text!r}")
    return numbers


BENCH = SwapBench()
