"""Swapping where the device is the CPU: the copies are plain memory copies, done when the call returns."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from stream2llm_pod.engine.swap.backend import Direction, TimedCopy
from stream2llm_pod.engine.swap.regions import as_words
from stream2llm_pod.engine.swap.runs import slot_runs


class CpuBackend:
    """A pool per region, so that a run of slots is one contiguous piece and each copy passes over the bytes once."""

    def __init__(self, regions: Sequence[torch.Tensor], slots: int) -> None:
        self._regions = [as_words(region) for region in regions]
        self._pools = [torch.empty((slots, region.shape[1]), dtype=region.dtype) for region in self._regions]
        self._timings: list[TimedCopy] = []

    def copy_out(self, block_ids: Sequence[int], slots: Sequence[int]) -> None:
        started = time.perf_counter()
        blocks = torch.tensor(block_ids)
        for start, end in slot_runs(slots):
            first, last = slots[start], slots[end - 1] + 1
            for region, pool in zip(self._regions, self._pools, strict=True):
                torch.index_select(region, 0, blocks[start:end], out=pool[first:last])
        self._timings.append(TimedCopy(Direction.OUT, len(slots), time.perf_counter() - started))

    def copy_in(self, slots: Sequence[int], block_ids: Sequence[int]) -> None:
        started = time.perf_counter()
        blocks = torch.tensor(block_ids)
        for start, end in slot_runs(slots):
            first, last = slots[start], slots[end - 1] + 1
            for region, pool in zip(self._regions, self._pools, strict=True):
                region[blocks[start:end]] = pool[first:last]
        self._timings.append(TimedCopy(Direction.IN, len(slots), time.perf_counter() - started))

    def take_timings(self) -> list[TimedCopy]:
        timings, self._timings = self._timings, []
        return timings

    def close(self) -> None:
        self._pools = []
