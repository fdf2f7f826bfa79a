"""Engines that the tests of this folder share: loading one takes seconds, a new scheduler milliseconds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# Before vLLM is imported: small, quiet, and on whatever cores there are.
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
# Else the CPU platform starts a worker process, which tests could not look into.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

if TYPE_CHECKING:
    from driving import References
    from engines import Engine


@pytest.fixture(scope="session")
def real_engines(tiny_model: Path) -> Iterator[Callable[[bool], Engine]]:
    """Given whether it schedules asynchronously, vLLM's CPU engine with the tiny model."""
    from engines import fake_cuda_streams, real_engine

    with fake_cuda_streams():
        yield cache(lambda asynchronous: real_engine(tiny_model, asynchronous=asynchronous))


@pytest.fixture(scope="session")
def references(real_engines: Callable[[bool], Engine]) -> References:
    """Answers of stock vLLM to whole prompts."""
    from driving import References

    return References(real_engines(False))


@pytest.fixture(scope="session")
def simulated_engines(tiny_model: Path) -> Callable[[bool], Engine]:
    """Given whether it schedules asynchronously, vLLM's engine core on the simulated executor."""
    from engines import simulated_engine

    return cache(lambda asynchronous: simulated_engine(tiny_model, asynchronous=asynchronous))
