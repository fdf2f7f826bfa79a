"""A real pod on a tiny model, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served_pod import Pod, StandInRouter, kill, start_pod


@pytest.fixture(scope="session")
def pod(tiny_text_model: Path, valkey_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    running = start_pod(tiny_text_model, valkey_server.port, tmp_path_factory.mktemp("pod"))
    try:
        yield running
    finally:
        kill(running.process)


@pytest.fixture
def router(pod: Pod) -> StandInRouter:
    return pod.router()
