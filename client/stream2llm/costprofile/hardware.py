"""From the name that torch or NVML reports for a device to the product name in the node label.

NVIDIA's GPU feature discovery labels a node `nvidia.com/gpu.product` with the device's name, blanks turned to hyphens,
and appends `-MIG-…` for a slice and `-SHARED` for a GPU that several pods share.
"""

from __future__ import annotations

import re

CPU = "cpu"
MAX_LABEL_LENGTH = 63
"""Kubernetes' limit on the value of a label."""

_SUFFIX = re.compile(r"([ -]MIG[ -]\d+[cg]\.[\w.+-]+|-SHARED|-MPS)+$")
_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9._-]+")

SEVERAL_NAMES = {
    "H200": "NVIDIA-H200",
    "NVIDIA-H100-SXM5-80GB": "NVIDIA-H100-80GB-HBM3",
    "A100-SXM4-40GB": "NVIDIA-A100-SXM4-40GB",
    "A100-SXM4-80GB": "NVIDIA-A100-SXM4-80GB",
    "A100-SXM-80GB": "NVIDIA-A100-SXM4-80GB",
    "A100-PCIE-40GB": "NVIDIA-A100-PCIE-40GB",
    "A100-PCIE-80GB": "NVIDIA-A100-80GB-PCIe",
    "NVIDIA-A100-PCIE-80GB": "NVIDIA-A100-80GB-PCIe",
    "L40S": "NVIDIA-L40S",
    "L4": "NVIDIA-L4",
}
"""Names that older drivers report for the same product."""


def product_name(device_name: str) -> str:
    """The product of a device name or of a node label, without the suffixes of slicing and sharing; `cpu` for a CPU.

    ValueError for a name with nothing in it that a label may hold.
    """
    name = _SUFFIX.sub("", device_name.strip())
    name = _NOT_IN_LABELS.sub("-", name).strip("-._")[:MAX_LABEL_LENGTH].rstrip("-._")
    if not name:
        raise ValueError(f"device name {device_name!r} has no letter or digit")
    if name.lower() == CPU:
        return CPU
    return SEVERAL_NAMES.get(name, name)
