"""The KV cache as block-major byte regions, taken from vLLM's own description of the layout.

vLLM places layer `l` of block `b` at `offset + l * layer_stride + b * block_stride` bytes in one allocation
(`KVCacheTensor`), whatever the order of heads and tokens within a block. So a block can be copied as bytes, and nothing
is guessed from the shape of a tensor, whose dimensions may be equal by accident.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_WORDS = (torch.complex128, torch.int64, torch.int32, torch.int16)
"""Complex numbers are torch's only type of 16 bytes; nothing is computed with them, so their bits stay as they are."""


def bytes_per_block(kv_cache_config: Any) -> int:
    """Bytes of one block over all layers, on one rank; 0 for a model without a KV cache."""
    tensors = kv_cache_config.kv_cache_tensors
    # All tensors are placed in one allocation, of which each gives the size.
    return int(tensors[0].size) // int(kv_cache_config.num_blocks) if tensors else 0


def block_regions(kv_caches: Mapping[str, torch.Tensor], kv_cache_config: Any) -> list[torch.Tensor]:
    """Views of the KV cache, each of shape [blocks, bytes of a block in it] and type int8; together all of it, once.

    kv_caches: what vLLM registers, layer name → tensor in the allocation. Raises ValueError if the description and the
    allocation do not fit together.
    """
    blocks = int(kv_cache_config.num_blocks)
    regions: dict[tuple[int, int], torch.Tensor] = {}
    for tensor in kv_cache_config.kv_cache_tensors:
        name = next((layer for layer in tensor.layers if layer in kv_caches), None)
        if name is None:
            continue
        cache = kv_caches[name]
        raw = torch.empty(0, dtype=torch.int8, device=cache.device).set_(cache.untyped_storage())
        span = blocks * tensor.block_stride
        if tensor.layer_stride >= span:
            # Layer by layer; where heads come before blocks, a layer is several such regions in a row.
            start, end = tensor.offset, tensor.offset + len(tensor.layers) * tensor.layer_stride
            per_layer, rest = divmod(tensor.layer_stride, span)
        else:
            # Block by block: one region has all layers of all tensors.
            start, end, per_layer, rest = 0, span, 1, 0
        if rest or end > raw.numel() or per_layer < 1:
            raise ValueError(
                f"the KV cache layout of {name} is not understood: {blocks} blocks of {tensor.block_stride} bytes, "
                f"{len(tensor.layers)} layers of {tensor.layer_stride} bytes at {tensor.offset}, "
                f"{raw.numel()} bytes allocated"
            )
        for at in range(start, end, span):
            key = (cache.untyped_storage().data_ptr(), at)
            regions.setdefault(key, raw[at : at + span].view(blocks, tensor.block_stride))
    found, expected = sum(region.shape[1] for region in regions.values()), bytes_per_block(kv_cache_config)
    if found != expected:
        raise ValueError(f"the KV cache has {found} bytes a block where its description says {expected}")
    return list(regions.values())


def as_words(region: torch.Tensor) -> torch.Tensor:
    """The same bytes in the widest elements that fit: fewer to index, and scattering as fast as memory allows."""
    width = region.shape[1]
    for dtype in _WORDS:
        size = dtype.itemsize
        if width % size == 0 and region.storage_offset() % size == 0 and region.data_ptr() % size == 0:
            return region.view(dtype)
    return region
