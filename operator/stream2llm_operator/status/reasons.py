"""Every reason that a condition can have, with what it means and what to do. docs/reference/status.md is made of this.

Reasons are for machines and are never renamed; messages are for people and may change.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """conditions: where it can stand; remedy: what a person does, empty where time does it."""

    name: str
    conditions: tuple[str, ...]
    meaning: str
    remedy: str


READY, PROFILED, PODS_READY, ROUTER_READY, SCALING_READY, STALLED = (
    *("Ready", "Profiled", "PodsReady", "RouterReady", "ScalingReady", "Stalled"),
)
CONDITIONS: dict[str, str] = {
    READY: "The pool takes streams: PodsReady and RouterReady are True and Stalled is False.",
    PROFILED: "Pods decide between swap and recompute by a cost profile of their GPU.",
    PODS_READY: "All serving pods that are asked for take streams, and run the newest configuration.",
    ROUTER_READY: "At least one router is at work.",
    SCALING_READY: "Nobody but people changes the number of pods, or the autoscaler works. Does not count for Ready.",
    STALLED: "Nothing will change until somebody changes something.",
}

_WORKLOADS = (PODS_READY, ROUTER_READY, PROFILED)

_TABLE: tuple[Reason, ...] = (
    Reason("Pending", (*CONDITIONS,), "The operator has not looked at this yet.", ""),
    Reason("Serving", (READY,), "The pool takes streams.", ""),
    Reason("AsWanted", (STALLED,), "Nothing stands in the way.", ""),
    # ------------------------------------------------------------------ spec
    Reason(
        "UnknownPolicy",
        (STALLED,),
        "`scheduling.policy` or `scheduling.preemption` is not one that this version has.",
        "Choose one of those that the message lists.",
    ),
    Reason(
        "ExtraArgConflict",
        (STALLED,),
        "`engine.extraArgs` holds a flag that a field of the resource sets.",
        "Take the flag out and set the field that the message names.",
    ),
    Reason(
        "TemplateConflict",
        (STALLED,),
        "A pod template sets what the operator has to set.",
        "Take out what the message names.",
    ),
    Reason(
        "TemplateRejected",
        (STALLED,),
        "The API server refuses a child, most often for a mistake in a pod template.",
        "Correct the field that the message names.",
    ),
    Reason(
        "InvalidValue",
        (STALLED,),
        "A field has a value that the schema cannot see is wrong.",
        "Give it a value within the limits that the message names.",
    ),
    Reason(
        "SpecUnreadable",
        (STALLED,),
        "The spec is not what this version of the operator understands; the CRD is older or newer than the operator.",
        "Apply the CRD of the operator's version, then write the resource again.",
    ),
    Reason(
        "NameConflict",
        (STALLED, SCALING_READY),
        "An object with the name of a child exists and belongs to somebody else. It is left alone.",
        "Delete or rename that object, or give the resource another name.",
    ),
    # --------------------------------------------------------------- profile
    Reason("Measured", (PROFILED,), "The profile was measured on this GPU for this engine.", ""),
    Reason(
        "Bundled",
        (PROFILED,),
        "The profile is one that came with the operator; the message says where it is only an estimate.",
        "",
    ),
    Reason("Provided", (PROFILED,), "The profile is the one that `costProfile.configMapRef` names.", ""),
    Reason(
        "NotNeeded",
        (PROFILED,),
        "Nothing is decided by a profile: `scheduling.preemption` is not `cost`, or without `engine.swap` every stream "
        "that gives way is recomputed.",
        "",
    ),
    Reason(
        "Remeasuring",
        (PROFILED,),
        "A new measurement is under way; the old profile serves meanwhile.",
        "",
    ),
    Reason("Profiling", (PROFILED,), "The profiling Job is being started, or runs.", ""),
    Reason(
        "GPUProductUnknown",
        (PROFILED, PODS_READY),
        "`gpu.product` is not set, and the nodes' labels name none or several products.",
        "Set `gpu.product`, or install GPU feature discovery, which labels nodes.",
    ),
    Reason(
        "SharedGPU",
        (PROFILED,),
        "The nodes share their GPUs between pods (time slicing or MPS), so nothing measured there would hold.",
        "Use nodes with whole GPUs or MIG slices, or provide a profile by `costProfile.configMapRef`.",
    ),
    Reason(
        "EngineVersionUnknown",
        (PROFILED,),
        "The image's tag does not tell which vLLM it holds, and profiles belong to a version.",
        "Set `engine.versionOverride`.",
    ),
    Reason(
        "ProfileNotFound",
        (PROFILED,),
        "The ConfigMap in `costProfile.configMapRef`, or its key, does not exist; or no bundled profile fits.",
        "Create it, or correct the reference; or measure.",
    ),
    Reason(
        "ProfileInvalid",
        (PROFILED,),
        "The profile cannot be read; the message names the field.",
        "Correct it, or measure: `stream2llm profile` writes valid ones.",
    ),
    Reason(
        "ProfileMismatch",
        (PROFILED,),
        "The profile is about another GPU, model or engine configuration; the message lists the differences.",
        "Provide one for this configuration, or measure.",
    ),
    Reason(
        "ProfilingFailed",
        (PROFILED,),
        "The profiling Job has ended without a profile. It is not tried again by itself.",
        "Read the message and `kubectl logs job/<name>-profile-<hash>`; then change the spec, or set "
        "`costProfile.measure.rerun.id` to a new value.",
    ),
    Reason(
        "ProfilingTimedOut",
        (PROFILED,),
        "The profiling Job has reached its deadline.",
        "Raise `costProfile.measure.job.timeoutSeconds`, or lower `maxLengthTokens` beside it; then set "
        "`costProfile.measure.rerun.id` to a new value.",
    ),
    # ------------------------------------------------------------------ pods
    Reason("AllReady", (PODS_READY, ROUTER_READY), "All of them are ready.", ""),
    Reason("ScaledToZero", (PODS_READY,), "No pods are asked for.", "Raise `replicas`."),
    Reason("WaitingForProfile", (PODS_READY,), "Pods start once there is a profile.", "See the condition Profiled."),
    Reason("Starting", (PODS_READY, ROUTER_READY), "Pods are being created, or load their model.", ""),
    Reason("RollingOut", (PODS_READY, ROUTER_READY), "Pods are being replaced by such with a newer configuration.", ""),
    Reason(
        "WaitingForGPU",
        (PODS_READY, PROFILED),
        "A pod waits for a free GPU. While an old pod drains this is not a failure.",
        "If it lasts, add nodes, or free GPUs.",
    ),
    Reason(
        "NoGPUNode",
        (PODS_READY, PROFILED),
        "No node has a GPU of the product that is asked for.",
        "Correct `gpu.product`, or add such a node.",
    ),
    Reason(
        "Unschedulable",
        _WORKLOADS,
        "No node takes the pod; the message is the scheduler's.",
        "Change resources, selectors or tolerations in the template, or the nodes.",
    ),
    Reason(
        "ImagePullFailed",
        _WORKLOADS,
        "An image cannot be pulled.",
        "Correct `engine.image`, or give the pods a pull secret in the template.",
    ),
    Reason(
        "ReferenceMissing",
        _WORKLOADS,
        "A Secret, ConfigMap, claim or key that a pod needs does not exist.",
        "Create it, or correct the reference that the message names.",
    ),
    Reason(
        "OutOfMemory",
        _WORKLOADS,
        "A container was killed for its memory limit.",
        "Raise the limit in the template, or lower `engine.swap.cpu` or `engine.sharedMemory`.",
    ),
    Reason(
        "CrashLoop",
        _WORKLOADS,
        "A container ends again and again; the message has its last words.",
        "Read `kubectl logs --previous`, then correct the spec.",
    ),
    Reason(
        "StartupTimedOut",
        (PODS_READY, ROUTER_READY),
        "Pods were not ready within `startup.timeoutSeconds`.",
        "Raise it, or see in the pod's log what takes so long.",
    ),
    Reason(
        "NotReady",
        (PODS_READY, ROUTER_READY),
        "Containers run and are not ready.",
        "Read the log.",
    ),
    Reason(
        "RedisUnreachable",
        (ROUTER_READY,),
        "Routers run and cannot reach Redis, so no streams are taken.",
        "Correct `streams.redis`, or see why that server does not answer: its address, password, certificates and "
        "network policies.",
    ),
    # --------------------------------------------------------------- scaling
    Reason("NotAutoscaled", (SCALING_READY,), "`spec.replicas` is what people set.", ""),
    Reason("Autoscaled", (SCALING_READY,), "The autoscaler reads its signals and sets `spec.replicas`.", ""),
    Reason(
        "Preview",
        (SCALING_READY,),
        "The autoscaler reads its signals and changes nothing; `status.autoscaling.desired` is what it would want.",
        "",
    ),
    Reason(
        "AutoscalingIncomplete",
        (STALLED,),
        "`autoscaling` lacks what its backend needs.",
        "Set the field that the message names.",
    ),
    Reason(
        "ScalerMissing",
        (SCALING_READY,),
        "The cluster does not know the kind of object that would scale. The number of pods stays.",
        "Install KEDA, or set `autoscaling.hpa` and serve external metrics.",
    ),
    Reason(
        "ScalerRejected",
        (SCALING_READY,),
        "The API server refuses the object that would scale. The number of pods stays.",
        "Correct the field that the message names, most often `autoscaling.behavior`.",
    ),
    Reason(
        "SignalsMissing",
        (SCALING_READY,),
        "The autoscaler misses signals. Nothing is scaled down until it has them again.",
        "Look whether Prometheus answers, scrapes pods, routers and operator, and has the recording rules "
        "(docs/autoscaling.md).",
    ),
    Reason(
        "CannotScale",
        (SCALING_READY,),
        "The autoscaler cannot read or write the resource's scale.",
        "Read the message; `kubectl describe hpa` has more.",
    ),
)

REASONS: dict[str, Reason] = {reason.name: reason for reason in _TABLE}


def status_page() -> str:
    """`docs/reference/status.md`."""
    lines = [
        "# Status of a StreamingPrefill",
        "",
        "<!-- Generated from operator/stream2llm_operator/status/reasons.py by `make generate`. Do not edit. -->",
        "",
        "`kubectl get spf` shows the reason of the condition Ready, `kubectl describe spf NAME` all conditions and",
        "events. Events use the same words. Reasons are never renamed, so scripts may rely on them.",
        "",
        "## Conditions",
        "",
        "| condition | True means |",
        "|---|---|",
        *(f"| `{name}` | {meaning} |" for name, meaning in CONDITIONS.items()),
        "",
        "When Ready is not True, it has the reason and message of what stands in the way most.",
        "",
        "## Reasons",
        "",
        "| reason | in | meaning | what to do |",
        "|---|---|---|---|",
    ]
    for reason in _TABLE:
        places = (
            "all" if reason.conditions == tuple(CONDITIONS) else ", ".join(f"`{name}`" for name in reason.conditions)
        )
        lines.append(f"| `{reason.name}` | {places} | {reason.meaning} | {reason.remedy or 'nothing'} |")
    return "\n".join(lines) + "\n"
