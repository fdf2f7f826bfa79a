"""Which GPU product a resource runs on, from the labels of nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stream2llm_operator.status.diagnosing import Finding

PRODUCT_LABEL = "nvidia.com/gpu.product"
SHARED_SUFFIXES = ("-SHARED", "-MPS")


def products(nodes: Iterable[Mapping[str, Any]], resource: str) -> set[str]:
    """Label values of all nodes that offer this resource, cordoned ones included: they come back."""
    found = set()
    for node in nodes:
        offered = (node.get("status") or {}).get("allocatable") or {}
        label = (node["metadata"].get("labels") or {}).get(PRODUCT_LABEL)
        if label and str(offered.get(resource, "0")) != "0":
            found.add(label)
    return found


def discover(available: set[str]) -> str | Finding:
    """The only product there is, or why there is none to take.

    Among several nothing is chosen: the choice would depend on which nodes happen to be there.
    """
    if not available:
        return Finding("GPUProductUnknown", f"no node offers GPUs and has the label {PRODUCT_LABEL}; set gpu.product")
    if len(available) > 1:
        return Finding(
            "GPUProductUnknown", f"nodes have {', '.join(sorted(available))}; set gpu.product to one of them"
        )
    return next(iter(available))


def missing(available: set[str], product: str, resource: str) -> str:
    """Why no node can take a pod that asks for this product; empty where one can."""
    if product in available:
        return ""
    others = f"nodes have {', '.join(sorted(available))}" if available else "no node offers any"
    return f"no node offers {resource} with the label {PRODUCT_LABEL}={product}; {others}"


def is_shared(product: str) -> bool:
    return product.endswith(SHARED_SUFFIXES)
