#!/usr/bin/env python3
"""Measures a cost profile on a CUDA machine that has PyTorch and transformers, but no vLLM and nothing of this project.

    python measure_without_vllm.py --output profile.json             at most 4 minutes, on the first GPU
    python measure_without_vllm.py --output profile.json --dry-run   the same steps with a tiny model on the CPU

What it measures, and how that differs from vLLM (the profile's `method` says so):
- Prefill of a model shaped as Llama-3.1-8B with random weights, in steps of the token budget, with transformers and
  PyTorch's scaled-dot-product attention. vLLM's kernels are faster, for long prompts most of all.
- Copies of KV blocks between a cache in vLLM's layout (one region a layer, block-major) and pinned CPU memory, on a
  stream of its own, through a staging buffer on the device that gathers and scatters the blocks.
Prefer `stream2llm profile` wherever vLLM runs.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

MAX_SAMPLES = 5
STAGING_BYTES = 128 << 20
BYTES_PER_VALUE = 2
METHOD = (
    "transformers {transformers} and torch {torch} with random weights in the model's shape and sdpa attention; "
    "copies of scattered blocks in vLLM's layout through a staging buffer and pinned memory"
)


@dataclass(frozen=True)
class Shape:
    """A dense decoder as transformers' LlamaConfig describes it."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    longest_tokens: int

    @property
    def kv_values_per_token(self) -> int:
        """In one layer, keys and values."""
        return 2 * self.kv_heads * self.head_size


LLAMA_3_1_8B = Shape("meta-llama/Llama-3.1-8B-Instruct", 32, 4096, 14336, 32, 8, 128, 128256, 131072)
TINY = Shape("dry-run", 2, 64, 128, 4, 2, 16, 512, 512)


class PrefillTimer:
    """Times prefill of prompts of random tokens in steps of the token budget."""

    def __init__(self, shape: Shape, device: str, budget_tokens: int) -> None:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        self._torch, self._device, self._shape, self._budget_tokens = torch, device, shape, budget_tokens
        config = LlamaConfig(
            num_hidden_layers=shape.layers,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_size,
            vocab_size=shape.vocabulary,
            max_position_embeddings=shape.longest_tokens + 1,
            attn_implementation="sdpa",
        )
        dtype = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device(device):
                self._model = LlamaForCausalLM(config).eval()
        finally:
            torch.set_default_dtype(dtype)

    def seconds(self, tokens: int, deadline_s: float) -> float | None:
        """None if the deadline passed before the prompt was through."""
        torch = self._torch
        from transformers import DynamicCache

        prompt = torch.randint(self._shape.vocabulary, (1, tokens), device=self._device)
        cache = DynamicCache()
        self._wait()
        started_s = time.perf_counter()
        with torch.inference_mode():
            for start in range(0, tokens, self._budget_tokens):
                if time.monotonic() >= deadline_s:
                    return None
                part = prompt[:, start : start + self._budget_tokens]
                self._model(input_ids=part, past_key_values=cache, use_cache=True, logits_to_keep=1)
                self._wait()
        return time.perf_counter() - started_s

    def _wait(self) -> None:
        if self._device != "cpu":
            self._torch.cuda.synchronize()


class CopyTimer:
    """Times copies of scattered blocks of all layers to a pool in CPU memory and back."""

    def __init__(self, shape: Shape, device: str, block_size: int, blocks: int) -> None:
        import torch

        self._torch, self._device, self._blocks = torch, device, blocks
        values = block_size * shape.kv_values_per_token
        self._regions = [
            torch.zeros((blocks, values), dtype=torch.bfloat16, device=device) for _ in range(shape.layers)
        ]
        pinned = device != "cpu"
        self._pools = [torch.zeros((blocks, values), dtype=torch.bfloat16, pin_memory=pinned) for _ in self._regions]
        self._chunk = max(1, min(blocks, STAGING_BYTES // (values * BYTES_PER_VALUE)))
        self._staging = torch.empty((self._chunk, values), dtype=torch.bfloat16, device=device)
        self._stream = torch.cuda.Stream() if pinned else None

    def seconds(self, count: int) -> tuple[float, float]:
        """Out and in."""
        torch = self._torch
        blocks = torch.tensor(random.sample(range(self._blocks), count), device=self._device)
        return self._timed(lambda: self._copy_out(blocks)), self._timed(lambda: self._copy_in(blocks))

    def _timed(self, copy: Any) -> float:
        if self._stream is None:
            started_s = time.perf_counter()
            copy()
            return time.perf_counter() - started_s
        self._torch.cuda.synchronize()
        started_s = time.perf_counter()
        with self._torch.cuda.stream(self._stream):
            copy()
        self._stream.synchronize()
        return time.perf_counter() - started_s

    def _copy_out(self, blocks: Any) -> None:
        for region, pool in zip(self._regions, self._pools, strict=True):
            for start in range(0, len(blocks), self._chunk):
                chosen = blocks[start : start + self._chunk]
                buffer = self._staging[: len(chosen)]
                self._torch.index_select(region, 0, chosen, out=buffer)
                pool[start : start + len(chosen)].copy_(buffer, non_blocking=True)

    def _copy_in(self, blocks: Any) -> None:
        for region, pool in zip(self._regions, self._pools, strict=True):
            for start in range(0, len(blocks), self._chunk):
                chosen = blocks[start : start + self._chunk]
                buffer = self._staging[: len(chosen)]
                buffer.copy_(pool[start : start + len(chosen)], non_blocking=True)
                region.index_copy_(0, chosen, buffer)


def lengths(block_size: int, longest_tokens: int) -> list[int]:
    """Powers of two times the block size, then the longest."""
    found, tokens = [], block_size
    while tokens < longest_tokens:
        found.append(tokens)
        tokens *= 2
    return [*found, longest_tokens]


def measure_prefill(timer: PrefillTimer, wanted: list[int], deadline_s: float) -> dict[int, list[float]]:
    """Milliseconds by length, as far as the time goes; the first sample of each length is discarded while cheap."""
    found: dict[int, list[float]] = {}
    expected_s = 0.0
    for tokens in wanted:
        left_s = deadline_s - time.monotonic()
        if expected_s > left_s:
            say(f"prefill of {tokens} tokens skipped: it takes about {expected_s:.0f} s, and {left_s:.0f} s are left")
            break
        warm_up = expected_s < 0.05 * left_s
        samples: list[float] = []
        for number in range(MAX_SAMPLES + warm_up):
            # Half of what is left is for longer prompts.
            if samples and samples[-1] > 0.5 * (deadline_s - time.monotonic()) / MAX_SAMPLES:
                break
            try:
                seconds = timer.seconds(tokens, deadline_s)
            except RuntimeError as error:
                if "out of memory" not in str(error):
                    raise
                say(f"prefill of {tokens} tokens does not fit into the GPU's memory")
                return found
            if seconds is None:
                break
            if number >= warm_up:
                samples.append(seconds)
        if not samples:
            say(f"prefill of {tokens} tokens given up: the time is over")
            break
        found[tokens] = [1e3 * seconds for seconds in samples]
        expected_s = 2.5 * statistics.median(samples)
        say(f"prefill of {tokens} tokens: {statistics.median(found[tokens]):.2f} ms ({len(samples)} samples)")
    return found


def measure_copies(
    timer: CopyTimer, wanted: list[int], block_size: int, blocks: int
) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
    """Milliseconds out and in by length."""
    out: dict[int, list[float]] = {}
    back: dict[int, list[float]] = {}
    for tokens in wanted:
        count = -(-tokens // block_size)
        if count > blocks:
            say(f"copies of {tokens} tokens skipped: memory holds {blocks * block_size} tokens")
            break
        samples = [timer.seconds(count) for _ in range(MAX_SAMPLES + 1)][1:]
        out[tokens] = [1e3 * out_s for out_s, _ in samples]
        back[tokens] = [1e3 * in_s for _, in_s in samples]
        say(
            f"copies of {tokens} tokens: out {statistics.median(out[tokens]):.3f} ms, "
            f"in {statistics.median(back[tokens]):.3f} ms"
        )
    return out, back


def to_curve(samples_ms: dict[int, list[float]]) -> dict[str, list[float]]:
    """Medians with their median absolute deviations."""
    medians = [statistics.median(samples) for samples in samples_ms.values()]
    deviations = [
        statistics.median(abs(sample - median) for sample in samples)
        for samples, median in zip(samples_ms.values(), medians, strict=True)
    ]
    return {
        "tokens": list(samples_ms),
        "ms": [round(median, 4) for median in medians],
        "mad_ms": [round(deviation, 4) for deviation in deviations],
    }


def affordable_blocks(shape: Shape, block_size: int, device: str) -> int:
    """As many blocks as the longest prompt has, or as half of the host's and a third of the GPU's free memory hold."""
    block_bytes = shape.layers * block_size * shape.kv_values_per_token * BYTES_PER_VALUE
    wanted = -(-shape.longest_tokens // block_size)
    host_bytes = _available_host_bytes() // 2
    if device == "cpu":
        return max(min(wanted, host_bytes // block_bytes), 1)
    import torch

    return max(min(wanted, host_bytes // block_bytes, torch.cuda.mem_get_info()[0] // 3 // block_bytes), 1)


def _available_host_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return 0


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure a cost profile without vLLM, for Llama-3.1-8B on one GPU.")
    parser.add_argument("--output", required=True, type=Path, help="where the profile is written")
    parser.add_argument("--max-seconds", type=int, default=220, metavar="N", help="time for all of it (default: 220)")
    parser.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens in a block (default: 16)")
    parser.add_argument(
        "--max-num-batched-tokens", type=int, default=8192, metavar="N", help="tokens in a step (default: 8192)"
    )
    parser.add_argument(
        "--vllm-version", default="0.33.0", metavar="V", help="the vLLM that will use the profile (default: 0.33.0)"
    )
    parser.add_argument("--dry-run", action="store_true", help="a tiny model on the CPU: tries the script, not the GPU")
    args = parser.parse_args(arguments)
    for name, lowest in (("max_seconds", 10), ("block_size", 1), ("max_num_batched_tokens", 16)):
        if getattr(args, name) < lowest:
            parser.error(f"--{name.replace('_', '-')} must be at least {lowest}, not {getattr(args, name)}")
    if not args.output.absolute().parent.is_dir():
        parser.error(f"--output {args.output}: there is no such folder")
    return args


def main(arguments: list[str] | None = None) -> int:
    started_s = time.monotonic()
    args = parse_arguments(arguments)
    try:
        import torch
        import transformers
    except ImportError as error:
        say(f"this script needs PyTorch and transformers: {error}")
        return 1
    if not args.dry_run and not torch.cuda.is_available():
        say("there is no CUDA device; --dry-run tries the script on the CPU")
        return 1
    device, shape = ("cpu", TINY) if args.dry_run else ("cuda", LLAMA_3_1_8B)
    deadline_s = started_s + args.max_seconds
    wanted = lengths(args.block_size, shape.longest_tokens)
    blocks = affordable_blocks(shape, args.block_size, device)
    out, back = measure_copies(CopyTimer(shape, device, args.block_size, blocks), wanted, args.block_size, blocks)
    if device == "cuda":
        torch.cuda.empty_cache()
    prefill = measure_prefill(PrefillTimer(shape, device, args.max_num_batched_tokens), wanted, deadline_s)
    if not prefill:
        say("nothing could be measured in this time; allow more with --max-seconds")
        return 1
    profile = {
        "schema": 1,
        "gpu": "cpu" if device == "cpu" else torch.cuda.get_device_name().replace(" ", "-"),
        "model": shape.name,
        "revision": "",
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "quantization": None,
        "tensor_parallel_size": 1,
        "block_size": args.block_size,
        "max_num_batched_tokens": args.max_num_batched_tokens,
        "kv_bytes_per_token": shape.layers * shape.kv_values_per_token * BYTES_PER_VALUE,
        "vllm_version": args.vllm_version,
        "source": "measured",
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "method": METHOD.format(transformers=transformers.__version__, torch=torch.__version__),
        "prefill": to_curve(prefill),
        "swap_out": to_curve(out),
        "swap_in": to_curve(back),
    }
    args.output.write_text(json.dumps(profile, indent=1) + "\n", encoding="utf-8")
    say(f"written: {args.output} after {time.monotonic() - started_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
