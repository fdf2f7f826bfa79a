"""Imports the latency files that the artifact of the Stream2LLM paper (MLSys 2026) writes.

One file holds `recomputation_latencies`, the other `swap_out_latency` and `swap_in_latency`: objects from the number of
tokens to a list of milliseconds. Both hold `metadata` with the model's name and the tensor parallel size. A swap list
is the samples of all workers one after another; a copy is over when its slowest worker is done.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from stream2llm.costprofile.document import MAX_POINTS, CostProfile, Curve, InvalidProfile
from stream2llm.costprofile.key import ProfileKey

MAX_SAMPLES = 1024


def import_artifact(
    recompute: Mapping[str, Any],
    swap: Mapping[str, Any],
    *,
    engine: ProfileKey,
    vllm_version: str,
    kv_bytes_per_token: int,
    measured_at: datetime | None = None,
) -> CostProfile:
    """The two files as a profile for `engine`, source `imported`.

    The files say nothing of GPU, data types and block size, and measured each prompt in one step whatever the token
    budget; so the caller vouches that they fit. Model and tensor parallel size are checked where the files name them.

    Raises InvalidProfile, with the file's key as the field.
    """
    for name, document in (("recompute", recompute), ("swap", swap)):
        _check_metadata(name, document, engine)
    workers = engine.tensor_parallel_size
    return CostProfile(
        gpu=engine.gpu,
        model=engine.model,
        revision=engine.revision,
        dtype=engine.dtype,
        kv_cache_dtype=engine.kv_cache_dtype,
        quantization=engine.quantization,
        tensor_parallel_size=workers,
        block_size=engine.block_size,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        kv_bytes_per_token=kv_bytes_per_token,
        vllm_version=vllm_version,
        source="imported",
        measured_at="" if measured_at is None else measured_at.isoformat(),
        prefill=_curve(recompute, "recomputation_latencies", lambda samples: samples),
        swap_out=_curve(swap, "swap_out_latency", lambda samples: slowest_of_workers(samples, workers)),
        swap_in=_curve(swap, "swap_in_latency", lambda samples: slowest_of_workers(samples, workers)),
        method="imported from the latency files of the Stream2LLM artifact (one step a prompt)",
    ).checked()


def slowest_of_workers(samples: Sequence[float], workers: int) -> list[float]:
    """For each repetition the slowest worker's; the samples as they are if they do not divide among the workers."""
    if len(samples) % workers:
        return list(samples)
    repetitions = len(samples) // workers
    return [max(samples[i::repetitions]) for i in range(repetitions)]


def _check_metadata(name: str, document: Mapping[str, Any], engine: ProfileKey) -> None:
    metadata = document.get("metadata")
    if not isinstance(metadata, Mapping):
        raise InvalidProfile(f"{name}.metadata", "is missing")
    expected = (("model_name", engine.model), ("tensor_parallel_size", engine.tensor_parallel_size))
    for key, ours in expected:
        if key in metadata and metadata[key] != ours:
            raise InvalidProfile(f"{name}.metadata.{key}", f"is {metadata[key]!r}, this engine has {ours!r}")


def _curve(document: Mapping[str, Any], key: str, reduce: Callable[[Sequence[float]], Sequence[float]]) -> Curve:
    by_tokens = document.get(key)
    if not isinstance(by_tokens, Mapping):
        raise InvalidProfile(key, "is missing")
    if not 1 <= len(by_tokens) <= MAX_POINTS:
        raise InvalidProfile(key, f"must have 1 to {MAX_POINTS} lengths, not {len(by_tokens)}")
    points = []
    for text, samples in by_tokens.items():
        if not (isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) <= 9):
            raise InvalidProfile(key, f"{str(text)[:40]!r} is not a number of tokens")
        reduced = reduce(_samples(samples, f"{key}.{text}"))
        median = statistics.median(reduced)
        points.append((int(text), median, statistics.median(abs(sample - median) for sample in reduced)))
    points.sort()
    return Curve(
        tuple(tokens for tokens, _, _ in points), tuple(ms for _, ms, _ in points), tuple(mad for _, _, mad in points)
    )


def _samples(value: Any, field: str) -> list[float]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_SAMPLES:
        raise InvalidProfile(field, f"must be a list of 1 to {MAX_SAMPLES} samples")
    for sample in value:
        if not isinstance(sample, (int, float)) or isinstance(sample, bool) or not sample >= 0:
            raise InvalidProfile(field, f"{str(sample)[:40]} is not a number of milliseconds")
    return value
