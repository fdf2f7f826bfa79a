"""A pool of CPU pods in the test cluster: the namespace, the volumes, and the StreamingPrefill."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from images import reference
from local_volumes import read_only

PACKAGES_PATH = "/packages"
PACKAGES, MODEL = "packages", "model"
RELEASE, SYSTEM_NAMESPACE = "stream2llm", "stream2llm"
REDIS_URL = f"redis://{RELEASE}-valkey.{SYSTEM_NAMESPACE}.svc.cluster.local:6379"
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}


def chart_values() -> dict[str, Any]:
    """Values of our chart for a node that has the images of `images.py` and no registry."""
    repository, _, tag = reference("pod").rpartition(":")
    images = {
        name: {"repository": reference(image).rpartition(":")[0], "tag": tag}
        for name, image in (("operator", "operator"), ("router", "router"))
    }
    pod = {"repository": repository, "tag": tag}
    return {
        "images": {**images, "podCpu": pod, "podCuda": pod, "pullPolicy": "Never"},
        "valkey": {"enabled": True, "image": reference("valkey"), "storage": ""},
    }


def namespace(name: str) -> dict[str, Any]:
    """One in which the restricted Pod Security Standard is enforced."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(RESTRICTED)}}


def volumes(name: str, packages: Path, model: Path) -> list[dict[str, Any]]:
    """Volumes and claims of namespace `name`, with vLLM's packages and with the model."""
    return [*read_only(name, PACKAGES, packages), *read_only(name, MODEL, model)]


SPEC: dict[str, Any] = {
    "model": {
        "name": "tiny",
        "source": {"pvc": {"claimName": MODEL}},
        "dtype": "float32",
        "maxLengthTokens": 2048,
    },
    "engine": {
        "device": "CPU",
        "maxBatchedTokens": 512,
        "maxSequences": 16,
        "sharedMemory": "512Mi",
        "swap": {"cpu": "256Mi"},
        # The compiler that vLLM would call is not in the small image, and compiling takes longer than the tests.
        "extraArgs": ["--enforce-eager", "--block-size", "32"],
    },
    "scheduling": {"preemption": "cost"},
    "costProfile": {"measure": {"whileMissing": "Wait", "job": {"timeoutSeconds": 1200, "maxLengthTokens": 512}}},
    "streams": {"redis": {"url": REDIS_URL}, "maxOpenStreams": 8},
    "router": {"replicas": 1, "resources": {"requests": {"cpu": "50m"}}},
    "startup": {"timeoutSeconds": 900},
    "drain": {"timeoutSeconds": 30},
    "template": {
        "spec": {
            "volumes": [{"name": PACKAGES, "persistentVolumeClaim": {"claimName": PACKAGES, "readOnly": True}}],
            "containers": [
                {
                    "name": "engine",
                    "env": [
                        {"name": "PYTHONPATH", "value": PACKAGES_PATH},
                        {"name": "VLLM_CPU_KVCACHE_SPACE", "value": "1"},
                    ],
                    "resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "6Gi"}},
                    "volumeMounts": [{"name": PACKAGES, "mountPath": PACKAGES_PATH, "readOnly": True}],
                }
            ],
        }
    },
}


def spec(**changes: Any) -> dict[str, Any]:
    """The pool's spec, with some of its top fields replaced."""
    return {**copy.deepcopy(SPEC), **changes}


def resource(name: str, pool_spec: dict[str, Any], pool_namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "stream2llm.io/v1alpha1",
        "kind": "StreamingPrefill",
        "metadata": {"name": name, "namespace": pool_namespace},
        "spec": pool_spec,
    }
