"""Regions of equal block size as one table of rows, so that a copy of many blocks of many layers is one operation."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stream2llm_pod.engine.swap.regions import as_words


class RowTable:
    """Rows of one size in one allocation: row `first_rows[r] + b` is block b of region r.

    In host memory the same rows lie block by block, all regions of a block together, so that a run of slots is one
    contiguous piece.
    """

    def __init__(self, rows: torch.Tensor, first_rows: Sequence[int]) -> None:
        """rows: shape [rows, words]."""
        self.rows = rows
        self.rows_per_block = len(first_rows)
        self._first_rows = torch.tensor(first_rows, dtype=torch.int64, device=rows.device)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in this table."""
        return int(self.rows_per_block * self.rows.shape[1] * self.rows.element_size())

    def of_blocks(self, block_ids: torch.Tensor) -> torch.Tensor:
        """The rows of these blocks, block by block."""
        return (block_ids[:, None] + self._first_rows[None, :]).reshape(-1)

    def run(self, first_slot: int, slots: int) -> slice:
        """The rows in host memory of that many slots from the first one on."""
        return slice(first_slot * self.rows_per_block, (first_slot + slots) * self.rows_per_block)

    def of_slots(self, slots: Sequence[int]) -> torch.Tensor:
        """The rows in host memory of these slots, slot by slot."""
        first_rows = torch.tensor(slots)[:, None] * self.rows_per_block
        return (first_rows + torch.arange(self.rows_per_block)[None, :]).reshape(-1)


def row_tables(regions: Sequence[torch.Tensor]) -> list[RowTable]:
    """As few tables as the regions allow: those of one size in one allocation, whose distance is whole rows, share one.

    regions: see `regions.block_regions`.
    """
    groups: dict[tuple[int, int, int], list[torch.Tensor]] = {}
    for region in regions:
        width = region.shape[1]
        key = (region.untyped_storage().data_ptr(), width, region.storage_offset() % width)
        groups.setdefault(key, []).append(region)
    return [_table(group) for group in groups.values()]


def _table(regions: Sequence[torch.Tensor]) -> RowTable:
    width = regions[0].shape[1]
    starts = [region.storage_offset() for region in regions]
    start = min(starts)
    end = max(at + region.numel() for at, region in zip(starts, regions, strict=True))
    rows = regions[0].as_strided(((end - start) // width, width), (width, 1), start)
    return RowTable(as_words(rows), [(at - start) // width for at in starts])
