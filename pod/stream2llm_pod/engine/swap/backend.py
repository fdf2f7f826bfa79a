"""What copies KV blocks between the device and the host pool, in the worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import torch


class Direction(StrEnum):
    """Seen from the device."""

    OUT = "out"
    IN = "in"


@dataclass(frozen=True, slots=True)
class TimedCopy:
    """A copy that has ended."""

    direction: Direction
    blocks: int
    seconds: float


class SwapBackend(Protocol):
    """Copies whole blocks of all layers. One per rank, which copies its own shard.

    Calls take effect in their order, whatever their direction, so that a slot may be written by the call after the one
    that reads it.
    """

    def copy_out(self, block_ids: Sequence[int], slots: Sequence[int]) -> None:
        """Block `block_ids[i]` to slot `slots[i]`. What the device computes after the call may overwrite the blocks."""

    def copy_in(self, slots: Sequence[int], block_ids: Sequence[int]) -> None:
        """Slot `slots[i]` to block `block_ids[i]`. What the device computes after the call sees the values."""

    def take_timings(self) -> list[TimedCopy]:
        """Copies that have ended since the last call."""

    def close(self) -> None:
        """Wait for copies under way and give the pool's memory back."""


def make_backend(regions: Sequence[torch.Tensor], slots: int) -> SwapBackend:
    """The backend for the device that the regions are on (see `regions.block_regions`), with a pool of `slots`.

    Raises ValueError for a device without a backend.
    """
    device = regions[0].device.type
    if device == "cpu":
        from stream2llm_pod.engine.swap.cpu import CpuBackend

        return CpuBackend(regions, slots)
    if device == "cuda":
        from stream2llm_pod.engine.swap.cuda import CudaBackend

        return CudaBackend(regions, slots)
    raise ValueError(f"swapping works on CUDA and CPU, not on {device}; use --preemption recompute")
