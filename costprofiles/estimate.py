#!/usr/bin/env python3
"""Writes the estimated profiles of this folder: Llama-3.1-8B on hardware of which the peak figures are published.

python costprofiles/estimate.py                          writes all of them
python costprofiles/estimate.py --check                  says which differ from what it would write
python costprofiles/estimate.py --folder F --vllm-version 0.32.0 --max-num-batched-tokens 2048
                                                         writes them for another engine
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from stream2llm.costprofile import CostProfile, ProfileKey
from stream2llm.costprofile.estimating import Device, ModelShape, estimate
from stream2llm.costprofile.key import vllm_minor

FOLDER = Path(__file__).resolve().parent
VLLM_VERSION = "0.33.0"
MAX_NUM_BATCHED_TOKENS = 8192
BLOCK_SIZE = 16
TENSOR_PARALLEL_SIZES = (1, 2)

# Sources: README.md.
DEVICES = (
    Device("NVIDIA-H200", peak_tflops=989, memory_gb_s=4800, host_gb_s=64, peer_gb_s=450),
    Device("NVIDIA-H100-80GB-HBM3", peak_tflops=989, memory_gb_s=3350, host_gb_s=64, peer_gb_s=450),
    Device("NVIDIA-A100-SXM4-80GB", peak_tflops=312, memory_gb_s=2039, host_gb_s=32, peer_gb_s=300),
    Device("NVIDIA-L40S", peak_tflops=362, memory_gb_s=864, host_gb_s=32, peer_gb_s=32),
    Device("NVIDIA-L4", peak_tflops=121, memory_gb_s=300, host_gb_s=32, peer_gb_s=32),
)
LLAMA_3_1_8B = ModelShape(
    name="meta-llama/Llama-3.1-8B-Instruct",
    layers=32,
    hidden=4096,
    intermediate=14336,
    heads=32,
    kv_heads=8,
    head_size=128,
    vocabulary=128256,
    max_tokens=131072,
)


def profiles(
    vllm_version: str = VLLM_VERSION, max_num_batched_tokens: int = MAX_NUM_BATCHED_TOKENS
) -> Iterator[tuple[str, CostProfile]]:
    """File name and profile, for each device and tensor parallel size."""
    model = LLAMA_3_1_8B
    for device in DEVICES:
        for ranks in TENSOR_PARALLEL_SIZES:
            key = ProfileKey(
                gpu=device.product,
                model=model.name,
                revision="",
                dtype="bfloat16",
                kv_cache_dtype="auto",
                quantization=None,
                tensor_parallel_size=ranks,
                block_size=BLOCK_SIZE,
                max_num_batched_tokens=max_num_batched_tokens,
                vllm_minor=vllm_minor(vllm_version),
            )
            yield (
                f"{device.product}-llama-3.1-8b-tp{ranks}.json",
                estimate(device, model, key, vllm_version=vllm_version),
            )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the estimated cost profiles of this folder.")
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="where they are written (default: beside this file)"
    )
    parser.add_argument("--vllm-version", default=VLLM_VERSION, metavar="V", help=f"default: {VLLM_VERSION}")
    parser.add_argument(
        "--max-num-batched-tokens",
        type=int,
        default=MAX_NUM_BATCHED_TOKENS,
        metavar="N",
        help=f"token budget of a step (default: {MAX_NUM_BATCHED_TOKENS})",
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file differs")
    args = parser.parse_args(arguments)
    if args.max_num_batched_tokens < 1:
        parser.error(f"--max-num-batched-tokens must be at least 1, not {args.max_num_batched_tokens}")
    if not args.folder.is_dir():
        parser.error(f"--folder {args.folder} is no folder")
    try:
        made = dict(profiles(args.vllm_version, args.max_num_batched_tokens))
    except ValueError as error:
        parser.error(str(error))
    stale = []
    for name, profile in made.items():
        path = args.folder / name
        if not args.check:
            path.write_text(profile.to_json(), encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != profile.to_json():
            stale.append(name)
    for name in stale:
        print(f"{name} is not what this script writes", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
