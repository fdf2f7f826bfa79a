"""The manifests of whole resources, compared with files that people can read.

After a wanted change: `STREAM2LLM_UPDATE_GOLDEN=1 pytest tests/operator/desired`, and look at the difference.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from profiles import profile_text
from scenarios import CPU, FULL, MINIMAL, SETTINGS, pool

from stream2llm.costprofile import parse_profile
from stream2llm_operator.desired.children import children
from stream2llm_operator.desired.profiling import config_map, job, profile_request
from stream2llm_operator.desired.serving import MountedProfile
from stream2llm_operator.pool import Pool

GOLDEN = Path(__file__).parent / "golden"
KUBERNETES_VERSIONS = ("1.34", "1.37")
PROFILE = MountedProfile("stream2llm-profile-0123456789", "profile.json", "9f86d081")


def profiling(of: Pool, gpu: str | None) -> list[dict[str, Any]]:
    request = profile_request(of, SETTINGS, gpu)
    assert request is not None
    return [
        job(of, SETTINGS, gpu, request, [of]),
        config_map(of, request, parse_profile(profile_text()), [of], "second"),
    ]


def rendered(name: str) -> list[dict[str, Any]]:
    if name == "minimal":
        of = pool(MINIMAL)
        return children(of, SETTINGS, gpu_product="NVIDIA-H200", profile=None, start_pods=True) + profiling(
            of, "NVIDIA-H200"
        )
    if name == "full":
        of = pool(FULL)
        return children(of, SETTINGS, gpu_product="NVIDIA-H200", profile=PROFILE, start_pods=True) + profiling(
            of, "NVIDIA-H200"
        )
    of = pool(CPU, "tiny")
    return children(of, SETTINGS, gpu_product=None, profile=None, start_pods=True) + profiling(of, None)


@pytest.mark.parametrize("name", ["minimal", "full", "cpu"])
def test_manifests_are_the_golden_ones(name: str) -> None:
    text = yaml.safe_dump_all(rendered(name), sort_keys=False, width=110)
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("STREAM2LLM_UPDATE_GOLDEN") == "1":
        path.write_text(text)
    assert list(yaml.safe_load_all(path.read_text())) == list(yaml.safe_load_all(text))


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("name", ["minimal", "full", "cpu"])
def test_manifests_are_valid_in_the_oldest_and_the_newest_kubernetes(name: str, version: str) -> None:
    for manifest in rendered(name):
        kubernetes_validate.validate(manifest, version, strict=True)


def test_the_same_resource_gives_the_same_manifests() -> None:
    assert rendered("full") == rendered("full")


@pytest.mark.parametrize("name", ["minimal", "full", "cpu"])
def test_pods_keep_to_the_restricted_standard(name: str) -> None:
    """What the restricted Pod Security Standard asks of pods and of our own containers."""
    templates = [manifest["spec"]["template"] for manifest in rendered(name) if "template" in manifest.get("spec", {})]
    assert len(templates) == 3
    for template in templates:
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        for volume in spec["volumes"]:
            assert set(volume) - {"name"} <= {"emptyDir", "configMap", "secret", "persistentVolumeClaim", "image"}
        ours = [item for item in spec["containers"] if item["name"] in ("engine", "router", "profile")]
        assert len(ours) == 1
        assert ours[0]["securityContext"]["allowPrivilegeEscalation"] is False
        assert ours[0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert ours[0]["securityContext"]["readOnlyRootFilesystem"] is True


def test_no_secret_is_in_an_argument_or_a_variable() -> None:
    text = yaml.safe_dump_all(rendered("full"))
    assert "--redis-password-file" in text
    for manifest in rendered("full"):
        for container in manifest.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
            for variable in container.get("env", []):
                if "valueFrom" in variable and "secretKeyRef" in variable["valueFrom"]:
                    assert variable["name"] == "HF_TOKEN"  # the hub's client reads it from there only
            assert not any("hunter2" in argument for argument in container.get("args", []))
