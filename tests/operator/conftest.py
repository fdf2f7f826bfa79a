"""A real Kubernetes API server for the operator's tests, started once; each test has a namespace of its own."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import programs
import pytest
from control_plane import ControlPlane
from kubernetes import client, config
from scenarios import MINIMAL

ROOT = Path(__file__).resolve().parent.parent.parent
_numbers = itertools.count(1)


@pytest.fixture
def minimal() -> dict[str, Any]:
    return copy.deepcopy(MINIMAL)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    version = os.environ.get("STREAM2LLM_KUBERNETES", programs.NEWEST)
    with ControlPlane(tmp_path_factory.mktemp("kubernetes"), kubernetes=version) as running:
        running.kubectl("apply", "-f", str(ROOT / "crds"))
        running.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(ROOT / "crds"))
        yield running


@dataclass(frozen=True)
class Cluster:
    """The API as one test sees it."""

    plane: ControlPlane
    api: client.ApiClient
    namespace: str

    @property
    def custom(self) -> client.CustomObjectsApi:
        return client.CustomObjectsApi(self.api)

    def create(self, spec: dict[str, Any], name: str = "pool") -> dict[str, Any]:
        """Create a StreamingPrefill. Raises kubernetes' ApiException."""
        body = {
            "apiVersion": "stream2llm.io/v1alpha1",
            "kind": "StreamingPrefill",
            "metadata": {"name": name},
            "spec": spec,
        }
        made: dict[str, Any] = self.custom.create_namespaced_custom_object(
            "stream2llm.io", "v1alpha1", self.namespace, "streamingprefills", body
        )
        return made

    def patch(self, patch: dict[str, Any], name: str = "pool") -> dict[str, Any]:
        """A merge patch of a StreamingPrefill."""
        made: dict[str, Any] = self.custom.patch_namespaced_custom_object(
            "stream2llm.io", "v1alpha1", self.namespace, "streamingprefills", name, patch
        )
        return made

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.plane.kubectl("--namespace", self.namespace, *arguments, stdin=stdin).stdout


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Iterator[Cluster]:
    name = f"test-{next(_numbers)}"
    control_plane.kubectl("create", "namespace", name)
    with config.new_client_from_config(str(control_plane.kubeconfig)) as api:
        yield Cluster(control_plane, api, name)
    control_plane.kubectl("--namespace", name, "delete", "spf", "--all", "--wait=false")
