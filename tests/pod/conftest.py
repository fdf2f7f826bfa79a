"""The tiny models that engine and serving tests run on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """Token ids only."""
    import tiny_llama

    return tiny_llama.cached("tiny-llama", tiny_llama.build)


@pytest.fixture(scope="session")
def tiny_text_model() -> Path:
    """Byte-level BPE and a chat template."""
    import tiny_llama

    return tiny_llama.cached("tiny-text-llama", tiny_llama.build_text)
