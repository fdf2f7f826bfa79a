"""A real one-node cluster with our chart in it, started once for all tests of this folder."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import cpu_pool
import images
import programs
import pytest
import tiny_llama
import vllm_environment
from chart import CHART, helm
from node import RealCluster
from pools import Pool

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """The cluster. Its Kubernetes version is STREAM2LLM_KUBERNETES, the newest if that is not set."""
    if os.geteuid() != 0:
        pytest.skip("a real node needs root")
    version = os.environ.get("STREAM2LLM_KUBERNETES", programs.NEWEST)
    with RealCluster(tmp_path_factory.mktemp("cluster"), kubernetes=version, images=(images.archive(),)) as running:
        yield running


@pytest.fixture(scope="session")
def installed(node: RealCluster) -> RealCluster:
    """The cluster with our chart installed in a namespace that enforces the restricted Pod Security Standard."""
    node.kubectl("apply", "-f", "-", stdin=json.dumps(cpu_pool.namespace(cpu_pool.SYSTEM_NAMESPACE)))
    helm(
        node.kubeconfig,
        *("install", cpu_pool.RELEASE, str(CHART), "--namespace", cpu_pool.SYSTEM_NAMESPACE),
        *("--wait", "--timeout", "180s"),
        values=cpu_pool.chart_values(),
    )
    return node


@pytest.fixture(scope="session")
def packages() -> Path:
    return vllm_environment.folder()


@pytest.fixture(scope="session")
def model() -> Path:
    """A tiny model with a tokenizer, readable by the pods' user."""
    folder = tiny_llama.cached("tiny-text-llama", tiny_llama.build_text)
    for file in folder.iterdir():
        file.chmod(0o644)
    return folder


@pytest.fixture
def pool(installed: RealCluster, packages: Path, model: Path) -> Iterator[Pool]:
    """A restricted namespace with the volumes of a pool, whose resource the test makes. All of it goes afterwards."""
    name = f"pool-{next(_numbers)}"
    objects = [cpu_pool.namespace(name), *cpu_pool.volumes(name, packages, model)]
    installed.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    made = Pool(installed, name)
    try:
        yield made
    finally:
        made.save_logs()
        installed.kubectl("delete", "namespace", name, "--timeout=180s")
        for volume in (cpu_pool.PACKAGES, cpu_pool.MODEL):
            installed.kubectl("delete", "persistentvolume", f"{name}-{volume}", "--wait=false")
