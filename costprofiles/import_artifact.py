"""Makes a cost profile from the two latency files that the artifact of the Stream2LLM paper writes.

usage: python costprofiles/import_artifact.py RECOMPUTE.json SWAP.json --gpu G --model M … > PROFILE.json

The files say nothing of GPU, data types, block size and token budget: you vouch for those on the command line.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from stream2llm.costprofile.document import InvalidProfile
from stream2llm.costprofile.importing import import_artifact
from stream2llm.costprofile.key import ProfileKey, vllm_minor

MAX_FILE_BYTES = 64 * 2**20


def read(path: Path) -> dict[str, Any]:
    """One of the two files. Raises InvalidProfile, with the path as the field."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidProfile(str(path), f"has {path.stat().st_size} bytes; the limit is {MAX_FILE_BYTES}")
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidProfile(str(path), str(error) or "is nested too deeply") from error
    if not isinstance(document, dict):
        raise InvalidProfile(str(path), "is no JSON object")
    return document


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Print a cost profile made from the paper artifact's latency files.")
    parser.add_argument("recompute", type=Path, metavar="RECOMPUTE", help="file with recomputation_latencies")
    parser.add_argument("swap", type=Path, metavar="SWAP", help="file with swap_out_latency and swap_in_latency")
    parser.add_argument("--gpu", required=True, help="product name as in the node label, e.g. NVIDIA-H200")
    parser.add_argument("--model", required=True, help="model as `serve` is given it")
    parser.add_argument("--revision", default="", help="of the model, where `serve` is given one")
    parser.add_argument("--dtype", default="bfloat16", help="default: bfloat16")
    parser.add_argument("--kv-cache-dtype", default="auto", help="default: auto")
    parser.add_argument("--quantization", default=None, help="default: none")
    parser.add_argument("--tensor-parallel-size", type=int, required=True, metavar="N")
    parser.add_argument("--block-size", type=int, default=16, metavar="N", help="default: 16")
    parser.add_argument("--max-num-batched-tokens", type=int, required=True, metavar="N")
    parser.add_argument(
        "--kv-bytes-per-token", type=int, required=True, metavar="N", help="131072 for Llama-3.1-8B in bfloat16"
    )
    parser.add_argument("--vllm-version", required=True, metavar="V", help="of the engine that will use the profile")
    args = parser.parse_args(arguments)
    if args.tensor_parallel_size < 1:
        parser.error(f"--tensor-parallel-size must be at least 1, not {args.tensor_parallel_size}")
    try:
        engine = ProfileKey(
            gpu=args.gpu,
            model=args.model,
            revision=args.revision,
            dtype=args.dtype,
            kv_cache_dtype=args.kv_cache_dtype,
            quantization=args.quantization,
            tensor_parallel_size=args.tensor_parallel_size,
            block_size=args.block_size,
            max_num_batched_tokens=args.max_num_batched_tokens,
            vllm_minor=vllm_minor(args.vllm_version),
        )
        profile = import_artifact(
            read(args.recompute),
            read(args.swap),
            engine=engine,
            vllm_version=args.vllm_version,
            kv_bytes_per_token=args.kv_bytes_per_token,
        )
    except (InvalidProfile, ValueError) as error:
        parser.error(str(error))
    sys.stdout.write(profile.to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
