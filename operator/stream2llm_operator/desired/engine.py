"""The container that runs the engine, as serving pods and the profiling Job share it."""

from __future__ import annotations

import re
from typing import Any

from stream2llm_operator.desired.naming import USER_ID
from stream2llm_operator.pool import OperatorSettings, Pool

MODEL_PATH, CACHE_PATH, HOME_PATH = "/model", "/cache", "/home/stream2llm"
_TAG_VERSION = re.compile(r"(?:^|[^0-9.])v?(\d+\.\d+\.\d+)(?!\d)")
_VLLM_TAG_VERSION = re.compile(r"vllm[-_]?v?(\d+\.\d+\.\d+)(?!\d)")
"""Where a tag names vLLM, its version counts and not the first one."""


def image(pool: Pool, settings: OperatorSettings) -> str:
    """The pods' image."""
    default = settings.image_cpu if pool.spec.engine.device == "CPU" else settings.image_cuda
    return pool.spec.engine.image or default


def engine_version(pool: Pool, settings: OperatorSettings) -> str:
    """vLLM's version in the image: as overridden, as in the image's tag, or that of the default images; else empty."""
    engine = pool.spec.engine
    if engine.version_override:
        return engine.version_override
    if not engine.image:
        return settings.engine_version
    tag = engine.image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    found = _VLLM_TAG_VERSION.search(tag) or _TAG_VERSION.search(tag)
    return found[1] if found else ""


def model_argument(pool: Pool) -> str:
    """What the engine is given as its model: a name on the hub, or a folder."""
    source = pool.spec.model.source
    if source.hugging_face is not None:
        return source.hugging_face.repo
    if source.pvc is not None and source.pvc.path:
        return f"{MODEL_PATH}/{source.pvc.path.strip('/')}"
    return MODEL_PATH


def engine_arguments(pool: Pool) -> list[str]:
    """Arguments of vLLM that typed fields and extraArgs give; those of typed fields last, so that they win."""
    model, engine = pool.spec.model, pool.spec.engine
    arguments = [
        *engine.extra_args,
        *("--served-model-name", model.name),
        *("--dtype", model.dtype),
        *("--max-num-batched-tokens", str(engine.max_batched_tokens)),
        *("--max-num-seqs", str(engine.max_sequences)),
    ]
    if model.source.hugging_face is not None and model.source.hugging_face.revision:
        arguments += ["--revision", model.source.hugging_face.revision]
    if model.max_length_tokens is not None:
        arguments += ["--max-model-len", str(model.max_length_tokens)]
    if model.remote_code == "Always":
        arguments += ["--trust-remote-code"]
    if engine.device == "CUDA":
        arguments += ["--tensor-parallel-size", str(engine.parallelism.tensor)]
        arguments += ["--gpu-memory-utilization", f"{engine.gpu_memory_utilization_percent / 100:.2f}"]
    return arguments


def pod_spec(
    pool: Pool, settings: OperatorSettings, container: dict[str, Any], gpu_product: str | None
) -> dict[str, Any]:
    """The pod around an engine's container: where it runs, as whom, and with which volumes."""
    spec = pool.spec
    volumes: list[dict[str, Any]] = [
        {"name": "cache", **_cache_volume(pool)},
        {"name": "home", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": spec.engine.shared_memory}},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": "cache", "mountPath": CACHE_PATH},
        {"name": "home", "mountPath": HOME_PATH},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    environment: list[dict[str, Any]] = [
        {"name": "HOME", "value": HOME_PATH},
        {"name": "HF_HOME", "value": CACHE_PATH},
    ]
    source = spec.model.source
    if source.hugging_face is not None and source.hugging_face.token_secret_ref is not None:
        token = source.hugging_face.token_secret_ref
        environment.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": token.name, "key": token.key}}})
    if source.pvc is not None:
        volumes.append(
            {"name": "model", "persistentVolumeClaim": {"claimName": source.pvc.claim_name, "readOnly": True}}
        )
    if source.image is not None:
        volumes.append(
            {
                "name": "model",
                "image": {"reference": source.image.reference, "pullPolicy": source.image.pull_policy},
            }
        )
    if source.hugging_face is None:
        mounts.append({"name": "model", "mountPath": MODEL_PATH, "readOnly": True})
    result: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "containers": [
            {
                "image": image(pool, settings),
                "imagePullPolicy": settings.image_pull_policy,
                "securityContext": container_security(),
                **container,
                "env": [*environment, *container.get("env", [])],
                "volumeMounts": [*mounts, *container.get("volumeMounts", [])],
            }
        ],
        "volumes": volumes,
    }
    if settings.image_pull_secrets:
        result["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    if spec.engine.device == "CUDA":
        _ask_for_gpus(result, pool, gpu_product)
    return result


def _ask_for_gpus(result: dict[str, Any], pool: Pool, gpu_product: str | None) -> None:
    resource = pool.spec.gpu.resource_name if pool.spec.gpu is not None else "nvidia.com/gpu"
    if "resourceClaims" not in pool.spec.template.get("spec", {}):
        # With claims the devices come through dynamic resource allocation; asking here too would take twice as many.
        result["containers"][0]["resources"] = {"limits": {resource: str(pool.spec.engine.parallelism.tensor)}}
    result["tolerations"] = [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]
    if gpu_product:
        result["nodeSelector"] = {"nvidia.com/gpu.product": gpu_product}


def _cache_volume(pool: Pool) -> dict[str, Any]:
    cache = pool.spec.model.cache
    if cache.pvc is not None:
        return {"persistentVolumeClaim": {"claimName": cache.pvc.claim_name}}
    limit = cache.empty_dir.size_limit if cache.empty_dir is not None else None
    return {"emptyDir": {"sizeLimit": limit} if limit else {}}


def pod_security() -> dict[str, Any]:
    """What the restricted Pod Security Standard asks for."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
