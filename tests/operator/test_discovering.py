from __future__ import annotations

from typing import Any

from stream2llm_operator.discovering import discover, is_shared, missing, products
from stream2llm_operator.status.diagnosing import Finding

GPU = "nvidia.com/gpu"


def node(product: str | None, gpus: str = "8") -> dict[str, Any]:
    labels = {"nvidia.com/gpu.product": product} if product else {}
    return {"metadata": {"name": "n", "labels": labels}, "status": {"allocatable": {GPU: gpus, "cpu": "64"}}}


def test_the_only_product_is_found() -> None:
    nodes = [node("NVIDIA-H200"), node("NVIDIA-H200"), node(None, "0"), node("NVIDIA-L4", "0")]
    assert discover(products(nodes, GPU)) == "NVIDIA-H200"


def test_several_and_none_are_not_guessed() -> None:
    several = discover(products([node("NVIDIA-H200"), node("NVIDIA-L4")], GPU))
    assert several == Finding("GPUProductUnknown", "nodes have NVIDIA-H200, NVIDIA-L4; set gpu.product to one of them")
    none = discover(products([node(None)], GPU))
    assert isinstance(none, Finding)
    assert none.reason == "GPUProductUnknown"


def test_what_no_node_has_is_named_with_what_there_is() -> None:
    available = products([node("NVIDIA-L4"), node("NVIDIA-H200", "0")], GPU)
    assert missing(available, "NVIDIA-L4", GPU) == ""
    assert missing(available, "NVIDIA-H200", GPU) == (
        "no node offers nvidia.com/gpu with the label nvidia.com/gpu.product=NVIDIA-H200; nodes have NVIDIA-L4"
    )
    assert missing(set(), "NVIDIA-L4", GPU).endswith("=NVIDIA-L4; no node offers any")


def test_slices_are_products_of_their_own_and_sharing_is_seen() -> None:
    assert not is_shared("NVIDIA-H200-MIG-1g.18gb")
    assert is_shared("NVIDIA-H200-SHARED")
    assert is_shared("NVIDIA-H200-MIG-1g.18gb-SHARED")
