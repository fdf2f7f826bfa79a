"""Copies between the device and the host pool, bit for bit, in every KV layout of vLLM."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stream2llm_pod.engine.swap.backend import Direction, make_backend
from stream2llm_pod.engine.swap.cpu import CpuBackend
from stream2llm_pod.engine.swap.regions import as_words, block_regions, bytes_per_block
from stream2llm_pod.engine.swap.tables import row_tables

pytestmark = pytest.mark.simulated
# Equal on purpose: no dimension can be told from another by its size.
BLOCKS = BLOCK_TOKENS = HEADS = 8
LAYERS, HEAD_SIZE = 3, 8
LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")


def cache_in(layout_name: str, dtype: torch.dtype = torch.float16) -> tuple[dict[str, torch.Tensor], Any]:
    """vLLM's own placement and allocation in that layout, filled with random bytes."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec
    from vllm.v1.kv_cache_layout import KVCacheLayout
    from vllm.v1.worker.utils import allocate_kv_cache

    # It has moved in vLLM 0.33.
    home = "kv_cache_planning" if find_spec("vllm.v1.core.kv_cache_planning") else "kv_cache_utils"
    get_kv_cache_config_from_groups = import_module(f"vllm.v1.core.{home}").get_kv_cache_config_from_groups
    layout = KVCacheLayout[layout_name]
    settings: Any = SimpleNamespace(
        attention_config=SimpleNamespace(hisparse_config=None),
        cache_config=SimpleNamespace(
            get_resolved_kv_cache_layout=lambda: layout,
            num_gpu_blocks_override=BLOCKS,
            prefix_cache_retention_interval=None,
        ),
    )
    spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=HEADS, head_size=HEAD_SIZE, dtype=dtype)
    group = KVCacheGroupSpec([f"layer.{i}" for i in range(LAYERS)], spec)
    config = get_kv_cache_config_from_groups(settings, [group], 1 << 24)
    caches = allocate_kv_cache(config, torch.device("cpu"), layout)
    raw = torch.empty(0, dtype=torch.int8).set_(next(iter(caches.values())).untyped_storage())
    raw.copy_(torch.randint(-128, 128, raw.shape, dtype=torch.int8, generator=torch.Generator().manual_seed(3)))
    return caches, config


def bits(cache: torch.Tensor) -> torch.Tensor:
    return cache.view(torch.int16)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_come_back_bit_for_bit_into_other_blocks(layout: str) -> None:
    caches, config = cache_in(layout)
    before = {name: bits(cache).clone() for name, cache in caches.items()}
    backend = make_backend(block_regions(caches, config), slots=5)
    backend.copy_out([6, 2, 5], [1, 2, 4])
    for cache in caches.values():
        bits(cache)[[6, 2, 5]] = 7
    backend.copy_in([1, 2, 4], [3, 6, 1])
    for name, cache in caches.items():
        now = bits(cache)
        assert torch.equal(now[[3, 6, 1]], before[name][[6, 2, 5]])
        assert torch.equal(now[[0, 4, 7]], before[name][[0, 4, 7]])
        assert bool((now[[2, 5]] == 7).all())
    assert [(copy.direction, copy.blocks) for copy in backend.take_timings()] == [(Direction.OUT, 3), (Direction.IN, 3)]
    assert backend.take_timings() == []
    backend.close()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_regions_are_the_whole_cache_once(layout: str) -> None:
    caches, config = cache_in(layout)
    regions = block_regions(caches, config)
    assert sum(region.shape[1] for region in regions) == bytes_per_block(config)
    for region in regions:
        region.zero_()
    assert all(bool((cache.view(torch.int16) == 0).all()) for cache in caches.values())
    # Each byte is in one region only.
    for region in regions:
        region.add_(1)
    assert all(bool((cache.view(torch.int8) == 1).all()) for cache in caches.values())


@pytest.mark.parametrize(("layout", "rows_per_block"), [("LBHNC", 3), ("LHBNC", 24), ("BLHNC", 1)])
def test_all_layers_are_copied_in_one_operation(layout: str, rows_per_block: int) -> None:
    caches, config = cache_in(layout)
    [table] = row_tables(block_regions(caches, config))
    assert table.rows_per_block == rows_per_block
    assert table.block_bytes == bytes_per_block(config)


def test_regions_that_are_no_whole_rows_apart_are_tables_of_their_own() -> None:
    memory = torch.zeros(100, dtype=torch.int8)
    regions = [memory[:32].view(4, 8), memory[36:68].view(4, 8), memory[80:90].view(5, 2)]
    assert [table.rows_per_block for table in row_tables(regions)] == [1, 1, 1]
    backend = CpuBackend(regions, 3)
    for i, region in enumerate(regions):
        region[1], region[3] = 10 * i + 1, 10 * i + 3
    backend.copy_out([3, 1], [2, 0])
    backend.copy_in([0, 2], [2, 0])
    for i, region in enumerate(regions):
        assert region[:4, 0].tolist() == [10 * i + 3, 10 * i + 1, 10 * i + 1, 10 * i + 3]


def test_a_layout_that_does_not_fit_its_allocation_is_refused() -> None:
    caches, config = cache_in("LBHNC")
    config.kv_cache_tensors[0].layers.append("layer.3")
    with pytest.raises(ValueError, match=r"the KV cache layout of layer\.0 is not understood: 8 blocks of"):
        block_regions(caches, config)


def test_layers_that_are_missing_are_noticed() -> None:
    caches, config = cache_in("LBHNC")
    config.kv_cache_tensors[0].layers.pop()
    with pytest.raises(ValueError, match="bytes a block where its description says"):
        block_regions(caches, config)


@pytest.mark.parametrize(
    ("width", "dtype"),
    [(32, torch.complex128), (24, torch.int64), (12, torch.int32), (6, torch.int16), (5, torch.int8)],
)
def test_bytes_are_moved_in_the_widest_words_that_fit(width: int, dtype: torch.dtype) -> None:
    region = torch.arange(3 * width, dtype=torch.int8).view(3, width)
    assert as_words(region).dtype == dtype
    assert torch.equal(as_words(region).view(torch.int8), region)


def test_a_region_that_starts_off_a_word_is_moved_in_bytes() -> None:
    region = torch.zeros(3 * 8 + 1, dtype=torch.int8)[1:].view(3, 8)
    backend = CpuBackend([region], 2)
    region[1] = 5
    backend.copy_out([1], [0])
    backend.copy_in([0], [2])
    assert region.tolist() == [[0] * 8, [5] * 8, [5] * 8]


@pytest.mark.parametrize("slots", [[0, 2, 4, 6], [6, 1, 5, 0], [3, 4, 0, 1]])
def test_slots_that_are_no_run(slots: list[int]) -> None:
    region = torch.randint(-128, 128, (8, 32), dtype=torch.int8, generator=torch.Generator().manual_seed(5))
    before = region.clone()
    backend = CpuBackend([region], 8)
    backend.copy_out([7, 2, 5, 1], slots)
    region.zero_()
    backend.copy_in([slots[2], slots[0], slots[3], slots[1]], [0, 4, 6, 3])
    assert torch.equal(region[[0, 4, 6, 3]], before[[5, 7, 1, 2]])


def test_a_device_without_a_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="swapping works on CUDA and CPU, not on meta; use --preemption recompute"):
        make_backend([torch.empty((2, 8), dtype=torch.int8, device="meta")], 1)
