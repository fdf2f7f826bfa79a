"""What a cost profile must be about, the Job that measures it, and the ConfigMap that keeps it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stream2llm.costprofile import CostProfile
from stream2llm.costprofile.key import model_identity, vllm_minor
from stream2llm_operator.api.crd import GROUP
from stream2llm_operator.desired.engine import engine_arguments, engine_version, model_argument, pod_spec
from stream2llm_operator.desired.merging import merged
from stream2llm_operator.desired.naming import (
    PROFILE_KEY_LABEL,
    labels,
    metadata,
    owner,
    profile_config_map_name,
    profile_job_name,
)
from stream2llm_operator.desired.serving import PROFILE_KEY
from stream2llm_operator.pool import OperatorSettings, Pool

AUTO = "auto"
"""What the engine chooses by itself: known only once a profile has been measured."""
MEASURING_MARGIN_S = 60
"""The pod's deadline lies this far behind the profiler's own, so that the profiler ends first and says what it has."""
RERUN_ANNOTATION = f"{GROUP}/rerun-id"
JOB_DIGEST_ANNOTATION = f"{GROUP}/job-digest"
"""Of the pod template that the Job was made with: a Job cannot be changed, only replaced."""
_FLAGS = {
    "kv_cache_dtype": ("--kv-cache-dtype", AUTO),
    "quantization": ("--quantization", AUTO),
    "block_size": ("--block-size", AUTO),
}


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """A `ProfileKey` as far as it is known before the engine has run. Resources with equal requests share a profile."""

    gpu: str
    model: str
    revision: str
    dtype: str
    kv_cache_dtype: str
    quantization: str
    tensor_parallel_size: int
    block_size: str
    max_num_batched_tokens: int
    vllm_minor: str
    max_length_tokens: int
    """Longest prompt measured; 0 for the model's own length."""
    bundled: bool = False
    """One that came with the operator is asked for. It has a name of its own beside one that was measured."""

    @property
    def hash(self) -> str:
        """Ten hexadecimal digits, for names and labels."""
        fields = asdict(self)
        if not self.bundled:
            del fields["bundled"]
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:10]

    def mismatches(self, profile: CostProfile) -> list[str]:
        """One line for each field in which a profile is not what was asked for."""
        key = profile.key
        lines = []
        for name in ("gpu", "model", "revision", "tensor_parallel_size", "max_num_batched_tokens", "vllm_minor"):
            wanted, found = getattr(self, name), getattr(key, name)
            if wanted != found:
                lines.append(f"{name}: profile has {found or 'none'}, the resource needs {wanted or 'none'}")
        for name in ("dtype", "kv_cache_dtype", "quantization", "block_size"):
            wanted, found = getattr(self, name), str(getattr(key, name) or "none")
            if wanted not in (AUTO, found):
                lines.append(f"{name}: profile has {found}, the resource needs {wanted}")
        return lines


def profile_request(pool: Pool, settings: OperatorSettings, gpu_product: str | None) -> ProfileRequest | None:
    """What this resource needs measured; None while the GPU or the engine's version is not known."""
    gpu = "cpu" if pool.spec.engine.device == "CPU" else gpu_product
    version = engine_version(pool, settings)
    if not gpu or not version:
        return None
    spec = pool.spec
    source = spec.model.source
    model, revision = model_identity(
        model_argument(pool), source.hugging_face.revision if source.hugging_face is not None else ""
    )
    flags = {name: _flag(spec.engine.extra_args, *flag) for name, flag in _FLAGS.items()}
    measure = spec.cost_profile.measure
    longest = measure.job.max_length_tokens if measure is not None else None
    bundled = spec.cost_profile.bundled is not None
    return ProfileRequest(
        gpu=gpu,
        model=model,
        revision=revision,
        dtype=spec.model.dtype,
        tensor_parallel_size=spec.engine.parallelism.tensor,
        max_num_batched_tokens=spec.engine.max_batched_tokens,
        vllm_minor=vllm_minor(version),
        max_length_tokens=0 if bundled else longest or spec.model.max_length_tokens or 0,
        bundled=bundled,
        **flags,
    )


def _flag(arguments: Sequence[str], flag: str, default: str) -> str:
    """The last value of a flag, given as one argument or as two."""
    value = default
    for index, argument in enumerate(arguments):
        name, equals, given = argument.partition("=")
        if name.replace("_", "-") == flag:
            following = arguments[index + 1] if index + 1 < len(arguments) else default
            value = given if equals else following
    return value


def job(
    pool: Pool, settings: OperatorSettings, gpu_product: str | None, request: ProfileRequest, owners: Sequence[Pool]
) -> dict[str, Any]:
    """Measures once, on what will serve. `owners` are all resources that need the profile; the Job outlives each alone.

    The deadline is the pod's: a Job's own counts the time that a pod is pending, and loses the termination message.
    """
    measure = pool.spec.cost_profile.measure
    if measure is None:
        raise ValueError(f"{pool.namespace}/{pool.name} does not ask for a measurement")
    timeout_s = measure.job.timeout_seconds
    arguments = ["profile", "--model", model_argument(pool), *engine_arguments(pool)]
    if measure.job.max_length_tokens is not None:
        arguments += ["--max-model-len", str(measure.job.max_length_tokens)]
    arguments += ["--output", "/tmp/profile.json", "--termination-message", "/dev/termination-log"]
    arguments += ["--max-seconds", str(max(timeout_s - MEASURING_MARGIN_S, 10)), "--no-plot"]
    container = {
        "name": "profile",
        "args": arguments,
        "terminationMessagePath": "/dev/termination-log",
        # What ends before it can write the message has its last words in the log.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    pod = pod_spec(pool, settings, container, gpu_product)
    pod |= {
        "serviceAccountName": pool.name,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": timeout_s,
        "terminationGracePeriodSeconds": 10,
    }
    template = merged({"metadata": {"labels": {}}, "spec": pod}, _placement(pool.spec.template))
    template = merged(template, dict(measure.job.template))
    marks = {**labels(pool, "profile"), PROFILE_KEY_LABEL: request.hash}
    template["metadata"]["labels"] = {**(template["metadata"].get("labels") or {}), **marks}
    annotations = {
        JOB_DIGEST_ANNOTATION: hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:16]
    }
    if measure.rerun.id:
        annotations[RERUN_ANNOTATION] = measure.rerun.id
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": profile_job_name(pool, request.hash),
            "namespace": pool.namespace,
            "labels": marks,
            "annotations": annotations,
            "ownerReferences": [owner(each, controller=False) for each in owners],
        },
        "spec": {
            # Most failures are deterministic, and a second try on the same GPU fails the same way.
            "backoffLimit": 0,
            "podFailurePolicy": {
                "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
            },
            "template": template,
        },
    }


# Parts of the serving template that say where a pod can run; the rest belongs to serving.
_PLACEMENT = (
    *("nodeSelector", "affinity", "tolerations", "runtimeClassName", "imagePullSecrets", "resourceClaims"),
    *("schedulerName", "priorityClassName", "volumes", "securityContext"),
)


def _placement(template: dict[str, Any]) -> dict[str, Any]:
    spec = template.get("spec") or {}
    kept: dict[str, Any] = {name: spec[name] for name in _PLACEMENT if name in spec}
    for container in spec.get("containers") or ():
        if isinstance(container, dict) and container.get("name") == "engine":
            wanted = ("resources", "env", "envFrom", "volumeMounts", "securityContext")
            kept["containers"] = [
                {"name": "profile", **{name: container[name] for name in wanted if name in container}}
            ]
    return {"spec": kept} if kept else {}


def config_map(
    pool: Pool, request: ProfileRequest, profile: CostProfile, owners: Sequence[Pool], rerun_id: str
) -> dict[str, Any]:
    """Keeps a measured profile for all resources in the namespace that need it, and goes with the last of them."""
    annotations = {RERUN_ANNOTATION: rerun_id} if rerun_id else {}
    child = metadata(pool, profile_config_map_name(request.hash), "profile", annotations=annotations)
    child["labels"] = {
        "app.kubernetes.io/name": "stream2llm",
        "app.kubernetes.io/component": "profile",
        "app.kubernetes.io/managed-by": labels(pool, "profile")["app.kubernetes.io/managed-by"],
        PROFILE_KEY_LABEL: request.hash,
    }
    child["ownerReferences"] = [owner(each, controller=False) for each in owners]
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": child, "data": {PROFILE_KEY: profile.to_json()}}
