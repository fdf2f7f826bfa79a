"""Swapping where the device is the CPU: the copies are plain memory copies, done when the call returns."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from stream2llm_pod.engine.swap.backend import Direction, TimedCopy
from stream2llm_pod.engine.swap.runs import slot_runs
from stream2llm_pod.engine.swap.tables import RowTable, row_tables

SHORT_RUN = 16
"""Runs of slots shorter than that on average are not copied one by one but gathered and scattered, piece by piece."""
PIECE_BYTES = 16 << 20
"""Bounds the buffer between the two; large enough that the operations' own cost does not show."""


class CpuBackend:
    """A run of slots is one operation that passes over the bytes once, with all of torch's threads."""

    def __init__(self, regions: Sequence[torch.Tensor], slots: int) -> None:
        self._tables = row_tables(regions)
        self._pools = [
            torch.empty((slots * table.rows_per_block, table.rows.shape[1]), dtype=table.rows.dtype)
            for table in self._tables
        ]
        # One piece, never more than that: fresh memory of the size of a prompt would cost more than the copy.
        self._buffers = [
            torch.empty((_piece_blocks(table) * table.rows_per_block, table.rows.shape[1]), dtype=table.rows.dtype)
            for table in self._tables
        ]
        self._timings: list[TimedCopy] = []

    def copy_out(self, block_ids: Sequence[int], slots: Sequence[int]) -> None:
        started = time.perf_counter()
        blocks = torch.tensor(block_ids)
        runs = list(slot_runs(slots))
        for table, pool, buffer in zip(self._tables, self._pools, self._buffers, strict=True):
            if _scattered(runs, slots):
                _move(table.rows, table.of_blocks(blocks), pool, table.of_slots(slots), buffer)
                continue
            for start, end in runs:
                rows = table.of_blocks(blocks[start:end])
                torch.index_select(table.rows, 0, rows, out=pool[table.run(slots[start], end - start)])
        self._timings.append(TimedCopy(Direction.OUT, len(slots), time.perf_counter() - started))

    def copy_in(self, slots: Sequence[int], block_ids: Sequence[int]) -> None:
        started = time.perf_counter()
        blocks = torch.tensor(block_ids)
        runs = list(slot_runs(slots))
        for table, pool, buffer in zip(self._tables, self._pools, self._buffers, strict=True):
            if _scattered(runs, slots):
                _move(pool, table.of_slots(slots), table.rows, table.of_blocks(blocks), buffer)
                continue
            for start, end in runs:
                table.rows[table.of_blocks(blocks[start:end])] = pool[table.run(slots[start], end - start)]
        self._timings.append(TimedCopy(Direction.IN, len(slots), time.perf_counter() - started))

    def take_timings(self) -> list[TimedCopy]:
        timings, self._timings = self._timings, []
        return timings

    def close(self) -> None:
        self._pools, self._buffers = [], []


def _scattered(runs: Sequence[tuple[int, int]], slots: Sequence[int]) -> bool:
    return len(runs) > 1 and len(runs) * SHORT_RUN > len(slots)


def _piece_blocks(table: RowTable) -> int:
    return max(1, PIECE_BYTES // table.block_bytes)


def _move(
    source: torch.Tensor,
    source_rows: torch.Tensor,
    target: torch.Tensor,
    target_rows: torch.Tensor,
    buffer: torch.Tensor,
) -> None:
    for start in range(0, len(source_rows), len(buffer)):
        rows = source_rows[start : start + len(buffer)]
        piece = buffer[: len(rows)]
        torch.index_select(source, 0, rows, out=piece)
        target[target_rows[start : start + len(buffer)]] = piece
