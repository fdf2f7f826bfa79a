"""The examples for Kubernetes: what the operator says of the pools, and helm of the values."""

from __future__ import annotations

import subprocess
from pathlib import Path

import programs
import pytest
import yaml

from stream2llm_operator.api.crd import API_VERSION
from stream2llm_operator.api.spec import Spec
from stream2llm_operator.desired.refusing import refusals

ROOT = Path(__file__).resolve().parent.parent.parent
POOLS = [
    path
    for path in sorted((ROOT / "examples" / "kubernetes").glob("*.yaml"))
    if yaml.safe_load(path.read_text())["apiVersion"] == API_VERSION
]


def test_there_are_pools() -> None:
    assert {path.name for path in POOLS} == {"cpu.yaml", "gpu.yaml", "redis-with-tls.yaml"}


@pytest.mark.parametrize("path", POOLS, ids=[path.name for path in POOLS])
def test_operator_carries_the_pool_out(path: Path) -> None:
    assert refusals(Spec.model_validate(yaml.safe_load(path.read_text())["spec"])) == []


@pytest.mark.kubernetes
@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "helm").glob("*.yaml")), ids=lambda path: path.name)
def test_chart_takes_the_values(path: Path) -> None:
    helm = programs.ensure("helm")["helm"]
    command = [str(helm), "template", "s2l", str(ROOT / "helm" / "stream2llm"), "--values", str(path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
