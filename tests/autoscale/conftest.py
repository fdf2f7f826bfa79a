"""The model that pods serve, Redis, and where a run leaves its table and plot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model() -> Path:
    import tiny_llama

    return tiny_llama.cached("tiny-text-llama", tiny_llama.build_text)


@pytest.fixture(scope="session")
def output() -> Path:
    """AUTOSCALE_OUTPUT, or build/autoscale in the checkout."""
    default = Path(__file__).resolve().parents[2] / "build" / "autoscale"
    folder = Path(os.environ.get("AUTOSCALE_OUTPUT") or default)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
