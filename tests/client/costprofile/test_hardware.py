from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.costprofile.hardware import product_name


@pytest.mark.parametrize(
    ("device", "product"),
    [
        ("NVIDIA H200", "NVIDIA-H200"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB"),
        ("A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB"),
        ("NVIDIA L40S", "NVIDIA-L40S"),
        ("NVIDIA L4", "NVIDIA-L4"),
        ("Tesla T4", "Tesla-T4"),
        ("cpu", "cpu"),
        ("CPU", "cpu"),
        # Labels, and the suffixes of slicing and sharing.
        ("NVIDIA-H200", "NVIDIA-H200"),
        ("NVIDIA-H100-80GB-HBM3-SHARED", "NVIDIA-H100-80GB-HBM3"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "NVIDIA-A100-SXM4-40GB"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED", "NVIDIA-A100-SXM4-40GB"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA-A100-SXM4-40GB"),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.me", "NVIDIA-H100-80GB-HBM3"),
        ("NVIDIA-H100-80GB-HBM3-MIG-1c.3g.40gb", "NVIDIA-H100-80GB-HBM3"),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb+me", "NVIDIA-H100-80GB-HBM3"),
        ("Some GPU (rev. 2) / x", "Some-GPU-rev.-2-x"),
    ],
)
def test_a_device_name_becomes_the_label_of_its_node(device: str, product: str) -> None:
    assert product_name(device) == product


@pytest.mark.parametrize("device", ["", "   ", "()"])
def test_a_name_without_a_letter_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match="has no letter or digit"):
        product_name(device)


@given(st.text(max_size=200))
def test_a_product_is_always_a_label_and_stays_as_it_is(device: str) -> None:
    try:
        product = product_name(device)
    except ValueError:
        return
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", product)
