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
    from driving import Answers, References
    from engines import Engine


@pytest.fixture(
    scope="session",
    params=[pytest.param("real", marks=pytest.mark.engine), pytest.param("simulated", marks=pytest.mark.simulated)],
)
def executor(request: pytest.FixtureRequest) -> str:
    """For tests that run on both: the real engine shows that tokens are right, the simulated one runs with every
    supported vLLM."""
    return str(request.param)


@pytest.fixture(scope="session")
def engines(executor: str, request: pytest.FixtureRequest) -> Callable[[bool], Engine]:
    """`real_engines` or `simulated_engines`."""
    chosen: Callable[[bool], Engine] = request.getfixturevalue(f"{executor}_engines")
    return chosen


@pytest.fixture(scope="session")
def answers(executor: str, request: pytest.FixtureRequest) -> Answers:
    """What those engines must answer to whole prompts."""
    if executor == "real":
        references: References = request.getfixturevalue("references")
        return references
    from driving import SimulatedAnswers

    return SimulatedAnswers(request.getfixturevalue("simulated_engines")(False).vocabulary)


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
