"""Runs in each worker: times the copies with the code that serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from vllm.distributed.kv_transfer import get_kv_transfer_group

from stream2llm_pod.engine.swap.backend import SwapBackend
from stream2llm_pod.engine.swap.connector import own_connector


def time_copies(worker: Any, block_ids: Sequence[int], repetitions: int) -> list[tuple[float, float]]:
    """Seconds of copying these blocks out and in again, by repetition, after one that is not counted.

    worker: vLLM's, which calls this. What the blocks hold stays as it is.
    """
    connector = own_connector(get_kv_transfer_group())
    assert connector is not None
    assert connector.backend is not None
    backend = connector.backend
    slots = list(range(len(block_ids)))
    seconds = []
    for _ in range(repetitions + 1):
        backend.copy_out(block_ids, slots)
        out_s = _ended_s(backend, worker)
        backend.copy_in(slots, block_ids)
        seconds.append((out_s, _ended_s(backend, worker)))
    return seconds[1:]


def _ended_s(backend: SwapBackend, worker: Any) -> float:
    if worker.device.type == "cuda":
        torch.cuda.synchronize(worker.device)
    return sum(copy.seconds for copy in backend.take_timings())
