"""What no schema can see and the operator does not carry out: said at once, with the field."""

from __future__ import annotations

from dataclasses import dataclass

from stream2llm.settings import MAX_CHUNK_BYTES
from stream2llm_operator.api.fields import quantity_bytes
from stream2llm_operator.api.spec import Spec

# Flags of vLLM and of `stream2llm serve` that a typed field sets, each with the field; without a field, the operator's.
OWNED_FLAGS: dict[str, str] = {
    "--model": "model.source",
    "--model-tag": "model.source",
    "--tokenizer": "model.source",
    "--revision": "model.source.huggingFace.revision",
    "--download-dir": "model.cache",
    "--served-model-name": "model.name",
    "--trust-remote-code": "model.remoteCode",
    "--max-model-len": "model.maxLengthTokens",
    "--dtype": "model.dtype",
    "--tensor-parallel-size": "engine.parallelism.tensor",
    "-tp": "engine.parallelism.tensor",
    "--max-num-batched-tokens": "engine.maxBatchedTokens",
    "--max-num-seqs": "engine.maxSequences",
    "--gpu-memory-utilization": "engine.gpuMemoryUtilizationPercent",
    "--swap-space": "engine.swap.cpu",
    "--policy": "scheduling.policy",
    "--preemption": "scheduling.preemption",
    "--max-wait-seconds": "scheduling.maxWaitSeconds",
    "--cost-profile": "costProfile",
    "--max-open-streams": "streams.maxOpenStreams",
    "--redis": "streams.redis.url",
    "--redis-password-file": "streams.redis.auth",
    "--redis-ca-file": "streams.redis.tls",
    "--redis-cert-file": "streams.redis.tls",
    "--redis-key-file": "streams.redis.tls",
    "--pool": "streams.poolName",
    "--drain-seconds": "drain.timeoutSeconds",
    "--idle-timeout-seconds": "streams.idleTimeoutSeconds",
    "--pod": "",
    "--host": "",
    "--port": "",
    "--uds": "",
    "--advertise-url": "",
    "--scheduler-cls": "",
    "--scheduling-policy": "",
    "--scheduler-reserve-full-isl": "",
    "--no-scheduler-reserve-full-isl": "",
    "--async-scheduling": "",
    "--no-async-scheduling": "",
    "--api-server-count": "",
    "--headless": "",
    "--grpc": "",
    "--config": "",
}
POLICIES = ("default", "fcfs", "lcas", "lcas-oldest", "mcps", "srpf", "auto")
PREEMPTIONS = ("cost", "recompute", "swap")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a spec is not carried out: a reason of the status (`status.reasons`), and a message that names the field."""

    reason: str
    message: str


def refusals(spec: Spec) -> list[Refusal]:
    """Everything about a spec that is wrong in itself, the most telling first; empty if nothing is."""
    found = []
    if spec.scheduling.policy not in POLICIES:
        found.append(
            Refusal(
                "UnknownPolicy",
                f"scheduling.policy {spec.scheduling.policy!r} is not one of {', '.join(POLICIES)}",
            )
        )
    if spec.scheduling.preemption not in PREEMPTIONS:
        found.append(
            Refusal(
                "UnknownPolicy",
                f"scheduling.preemption {spec.scheduling.preemption!r} is not one of {', '.join(PREEMPTIONS)}",
            )
        )
    found += [Refusal("ExtraArgConflict", message) for message in _flag_conflicts(spec)]
    found += [Refusal("TemplateConflict", message) for message in _template_conflicts(spec)]
    scaling = spec.autoscaling
    if scaling is not None and scaling.hpa is None and scaling.prometheus is None:
        found.append(
            Refusal("AutoscalingIncomplete", "autoscaling.prometheus.serverAddress is needed to scale through KEDA")
        )
    chunk_bytes = quantity_bytes(spec.streams.max_chunk)
    if not 1 <= chunk_bytes <= MAX_CHUNK_BYTES:
        found.append(Refusal("InvalidValue", f"streams.maxChunk {spec.streams.max_chunk} must be from 1 byte to 1Mi"))
    return found


def _flag_conflicts(spec: Spec) -> list[str]:
    messages = []
    for argument in spec.engine.extra_args:
        flag = argument.split("=", 1)[0].split(" ", 1)[0]
        name = flag.replace("_", "-") if flag.startswith("--") else flag
        if name.startswith("-tp"):
            name = "-tp"
        if name in OWNED_FLAGS:
            field = OWNED_FLAGS[name]
            messages.append(f"engine.extraArgs: {name} {f'is set by {field}' if field else 'is set by the operator'}")
    return messages


def _template_conflicts(spec: Spec) -> list[str]:
    """Parts of pod templates that typed fields own. Anything else is the API server's to judge, in a dry run."""
    messages = []
    for field, template, container in (
        ("template", spec.template, "engine"),
        ("router.template", spec.router.template, "router"),
        *(
            (("costProfile.measure.job.template", spec.cost_profile.measure.job.template, "profile"),)
            if spec.cost_profile.measure
            else ()
        ),
    ):
        unknown = sorted(set(template) - {"metadata", "spec"})
        if unknown:
            messages.append(f"{field}: {unknown[0]} is no part of a pod template; metadata and spec are")
        messages += [
            f"{field}.{name} must be an object"
            for name in ("metadata", "spec")
            if not isinstance(template.get(name, {}), dict)
        ]
        for item in _containers(template):
            if item.get("name") == container:
                messages += [
                    f"{field}: container {container} must not set {name}"
                    for name in ("args", "command")
                    if name in item
                ]
    return messages


def _containers(template: dict[str, object]) -> list[dict[str, object]]:
    spec = template.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    return [item for item in containers if isinstance(item, dict)] if isinstance(containers, list) else []
