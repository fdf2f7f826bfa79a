"""Swapping on CUDA: a pinned pool, one stream of its own, two hops through a staging buffer on the device.

**This module has not run on a GPU yet**; it is written to CUDA's rules and its logic is that of the CPU backend.

How the copies overlap with computing:
- Out: blocks are gathered on the device into the staging buffer, at the speed of device memory, and go to the host from
  there. What is computed next waits only until the blocks have been read, not for the bus.
- In: slots come to the staging buffer while earlier work is still running; only the last hop, from there to their
  blocks, waits for it. What is computed next waits for that hop.
- All copies of both directions are in one stream, so they keep the order of the calls. That is why a slot or a staging
  buffer needs no lock: whoever uses it next comes later in the stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch

from stream2llm_pod.engine.swap.backend import Direction, TimedCopy
from stream2llm_pod.engine.swap.runs import slot_runs
from stream2llm_pod.engine.swap.tables import row_tables

STAGING_BYTES = 128 << 20
"""Device memory for the staging buffer, at most; a small pool needs less. A copy that is larger takes several turns,
and then computing waits for all turns but the last one's trip over the bus."""


class CudaBackend:
    """`regions` are on one CUDA device; the pool is pinned host memory of the same bytes per block."""

    def __init__(self, regions: Sequence[torch.Tensor], slots: int) -> None:
        self._device = regions[0].device
        self._tables = row_tables(regions)
        self._pools = [
            pinned((slots * table.rows_per_block, table.rows.shape[1]), table.rows.dtype) for table in self._tables
        ]
        self._chunk = max(1, min(slots, STAGING_BYTES // sum(table.block_bytes for table in self._tables)))
        self._staging = [
            torch.empty(
                (self._chunk * table.rows_per_block, table.rows.shape[1]), dtype=table.rows.dtype, device=self._device
            )
            for table in self._tables
        ]
        # The lowest priority: a copy gives way to computing.
        self._stream = torch.cuda.Stream(device=self._device, priority=torch.cuda.Stream.priority_range()[0])
        self._running: deque[tuple[Direction, int, torch.cuda.Event, torch.cuda.Event]] = deque()

    def copy_out(self, block_ids: Sequence[int], slots: Sequence[int]) -> None:
        computing = torch.cuda.current_stream(self._device)
        blocks = self._on_device(block_ids)
        # Kernels of earlier steps may still be writing these blocks.
        self._stream.wait_stream(computing)
        sources_read = torch.cuda.Event()

        def copy() -> None:
            for start, end in self._chunks(len(slots)):
                for table, buffer in zip(self._tables, self._staging, strict=True):
                    rows = table.of_blocks(blocks[start:end])
                    torch.index_select(table.rows, 0, rows, out=buffer[: len(rows)])
                if end == len(slots):
                    sources_read.record(self._stream)
                for host, staged in self._pieces(slots[start:end]):
                    host.copy_(staged, non_blocking=True)

        self._timed(Direction.OUT, len(slots), copy)
        # Protects the blocks: nothing may overwrite them before they have been read.
        computing.wait_event(sources_read)
        blocks.record_stream(self._stream)

    def copy_in(self, slots: Sequence[int], block_ids: Sequence[int]) -> None:
        computing = torch.cuda.current_stream(self._device)
        blocks = self._on_device(block_ids)
        # What is under way may still read or write what the blocks held before; the first hop need not wait for it.
        before = torch.cuda.Event()
        before.record(computing)
        done = torch.cuda.Event()

        def copy() -> None:
            for start, end in self._chunks(len(slots)):
                for host, staged in self._pieces(slots[start:end]):
                    staged.copy_(host, non_blocking=True)
                self._stream.wait_event(before)
                for table, buffer in zip(self._tables, self._staging, strict=True):
                    rows = table.of_blocks(blocks[start:end])
                    table.rows.index_copy_(0, rows, buffer[: len(rows)])
            done.record(self._stream)

        self._timed(Direction.IN, len(slots), copy)
        computing.wait_event(done)
        blocks.record_stream(self._stream)

    def take_timings(self) -> list[TimedCopy]:
        timings = []
        while self._running and self._running[0][3].query():
            direction, blocks, started, ended = self._running.popleft()
            timings.append(TimedCopy(direction, blocks, started.elapsed_time(ended) / 1e3))
        return timings

    def close(self) -> None:
        self._stream.synchronize()
        for pool in self._pools:
            torch.cuda.cudart().cudaHostUnregister(pool.data_ptr())
        self._pools, self._staging = [], []

    def _on_device(self, block_ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(block_ids, dtype=torch.int64).pin_memory().to(self._device, non_blocking=True)

    def _chunks(self, count: int) -> list[tuple[int, int]]:
        return [(start, min(start + self._chunk, count)) for start in range(0, count, self._chunk)]

    def _pieces(self, slots: Sequence[int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """For each run of slots and each table, the run in the pool and its place in the staging buffer."""
        for start, end in slot_runs(slots):
            for table, pool, buffer in zip(self._tables, self._pools, self._staging, strict=True):
                yield pool[table.run(slots[start], end - start)], buffer[table.run(start, end - start)]

    def _timed(self, direction: Direction, blocks: int, copy: Callable[[], None]) -> None:
        started, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self._stream):
            started.record(self._stream)
            copy()
            ended.record(self._stream)
        self._running.append((direction, blocks, started, ended))


def pinned(shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Page-locked memory of exactly this size; torch's own allocator rounds up to the next power of two.

    Raises RuntimeError if the system refuses to lock that much.
    """
    pool = torch.zeros(shape, dtype=dtype)
    if pool.nbytes:
        error = torch.cuda.cudart().cudaHostRegister(pool.data_ptr(), pool.nbytes, 0)
        if error.value != 0:
            raise RuntimeError(f"{pool.nbytes} bytes of host memory could not be pinned ({error}); use less swap space")
    return pool
