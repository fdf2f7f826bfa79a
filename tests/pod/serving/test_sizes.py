"""Sizes as arguments."""

from __future__ import annotations

import pytest

from stream2llm_pod.serving.sizes import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("4096B", 4096),
        ("64Gi", 64 << 30),
        ("64GiB", 64 << 30),
        ("1.5 MiB", 3 << 19),
        ("2k", 2000),
        ("3TB", 3 * 10**12),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "GiB", "4 gigabytes", "1e9", "0x10", "4GiBs", "∞"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size; write it like 8GiB, 512MiB or 0"):
        parse_size(text)
