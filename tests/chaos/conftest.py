"""The model that the pods of a chaos run serve, and where its Redis comes from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import server_binaries

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "models"))


@pytest.fixture(scope="session")
def redis_binary() -> str:
    return server_binaries.redis_binary()


@pytest.fixture(scope="session")
def tiny_text_model() -> Path:
    """Byte-level BPE and a chat template."""
    import tiny_llama

    return tiny_llama.cached("tiny-text-llama", tiny_llama.build_text)
