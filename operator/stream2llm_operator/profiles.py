"""What to do about a resource's cost profile: pure, from the ConfigMap, the Job and its pods.

The state is all in the cluster: a ConfigMap with the profile, a Job that measures, and the id of the last
rerun as an annotation of both. So a pass may end anywhere and the next one goes on from what is there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from stream2llm.costprofile import CostProfile, InvalidProfile, parse_profile
from stream2llm_operator.desired.naming import POOL_LABEL, profile_config_map_name
from stream2llm_operator.desired.profiling import (
    JOB_DIGEST_ANNOTATION,
    RERUN_ANNOTATION,
    ProfileRequest,
)
from stream2llm_operator.desired.serving import PROFILE_KEY, MountedProfile, needs_profile
from stream2llm_operator.pool import Pool
from stream2llm_operator.status.deriving import ProfileInUse, Verdict
from stream2llm_operator.status.diagnosing import ANY_GPUS, Finding, GPUs, diagnose


@dataclass(frozen=True, slots=True)
class ProfileFacts:
    """What is there. config_map: the one that keeps, or that the resource names; job, pods: those that measure."""

    config_map: Mapping[str, Any] | None
    job: Mapping[str, Any] | None = None
    pods: Sequence[Mapping[str, Any]] = ()
    gpus: GPUs = ANY_GPUS
    bundled: CostProfile | None = None
    """The one that came with the operator, where that is what the resource asks for."""


@dataclass(frozen=True, slots=True)
class ProfileDecision:
    """What to say, what pods read, and what to do: at most one of the last three.

    store: a profile to keep in the ConfigMap; start_job: create the Job; delete_job: remove one that is in the way.
    """

    verdict: Verdict
    mounted: MountedProfile | None = None
    in_use: ProfileInUse | None = None
    may_start_pods: bool = True
    store: CostProfile | None = None
    start_job: bool = False
    delete_job: bool = False


@dataclass(frozen=True, slots=True)
class _Kept:
    profile: CostProfile
    mounted: MountedProfile
    in_use: ProfileInUse


def decide(
    pool: Pool,
    request: ProfileRequest | None,
    unknown: Finding | None,
    facts: ProfileFacts,
    *,
    job_digest: str,
    now: datetime,
) -> ProfileDecision:
    """request: what is needed, or None with `unknown` saying why that is not known.

    job_digest: of the Job that would be created now; now: with a time zone.
    """
    if not needs_profile(pool):
        return ProfileDecision(Verdict(True, "NotNeeded"))
    source = pool.spec.cost_profile
    may_start = source.measure is None or source.measure.while_missing == "Estimate"
    if request is None:
        found = unknown or Finding("GPUProductUnknown", "")
        return ProfileDecision(Verdict(False, found.reason, found.message), may_start_pods=may_start)
    if source.bundled is not None:
        return _bundled(request, facts)
    if source.config_map_ref is not None:
        return _provided(request, facts, source.config_map_ref.name, source.config_map_ref.key)
    return _measured(pool, request, facts, job_digest, now, may_start)


def _provided(request: ProfileRequest, facts: ProfileFacts, name: str, key: str) -> ProfileDecision:
    kept = _keep(request, facts.config_map, key)
    if isinstance(kept, Finding):
        if facts.config_map is None:
            kept = Finding("ProfileNotFound", f"there is no ConfigMap {name}")
        return ProfileDecision(Verdict(False, kept.reason, kept.message))
    return ProfileDecision(Verdict(True, "Provided"), kept.mounted, kept.in_use)


def _bundled(request: ProfileRequest, facts: ProfileFacts) -> ProfileDecision:
    """A ConfigMap holds a copy, for pods to read; it is written again where it says something else."""
    profile = facts.bundled
    if profile is None:
        engine = f"{request.gpu}, {request.model}, tensor parallel {request.tensor_parallel_size}"
        engine += f", {request.max_num_batched_tokens} tokens a step, vLLM {request.vllm_minor}"
        message = f"none of those that came with this operator is for {engine}"
        return ProfileDecision(Verdict(False, "ProfileNotFound", message))
    name, text = profile_config_map_name(request.hash), profile.to_json()
    there = (facts.config_map or {}).get("data") or {}
    return ProfileDecision(
        Verdict(True, "Bundled", "estimated from published figures" if profile.source == "estimated" else ""),
        MountedProfile(name, PROFILE_KEY, _text_digest(text)),
        ProfileInUse(name, profile.source, profile.measured_at),
        store=profile if there.get(PROFILE_KEY) != text else None,
    )


def find_bundled(profiles: Iterable[CostProfile], request: ProfileRequest, engine_version: str) -> CostProfile | None:
    """The first that fits; measured ones before estimates.

    An estimate follows from peak figures alone, so it holds for every version of vLLM, and is given that of the engine.
    """
    for profile in sorted(profiles, key=lambda profile: profile.source == "estimated"):
        candidate = replace(profile, vllm_version=engine_version) if profile.source == "estimated" else profile
        if not request.mismatches(candidate):
            return candidate
    return None


def _measured(
    pool: Pool, request: ProfileRequest, facts: ProfileFacts, job_digest: str, now: datetime, may_start: bool
) -> ProfileDecision:
    measure = pool.spec.cost_profile.measure
    assert measure is not None  # the union has exactly one member, and the others are handled
    kept = _keep(request, facts.config_map, PROFILE_KEY)
    current = kept if isinstance(kept, _Kept) else None
    due = current is None or (measure.rerun.id not in ("", current.in_use.rerun_id))
    if current is not None and measure.max_age_seconds is not None and current.profile.measured_at:
        age = now - datetime.fromisoformat(current.profile.measured_at)
        due = due or age.total_seconds() > measure.max_age_seconds
    if current is not None and not due:
        # Done with: the next measurement needs the name.
        return ProfileDecision(
            Verdict(True, "Measured"), current.mounted, current.in_use, delete_job=_is_finished(facts.job)
        )

    def going_on(verdict: Verdict, **action: Any) -> ProfileDecision:
        """While there is an old profile it serves, and what the Job does is only told."""
        if current is None:
            return ProfileDecision(verdict, may_start_pods=may_start, **action)
        message = f"{verdict.reason}: {verdict.message}".removesuffix(": ")
        return ProfileDecision(Verdict(True, "Remeasuring", message), current.mounted, current.in_use, **action)

    job = facts.job
    if job is None:
        return going_on(Verdict(False, "Profiling", "starting the Job"), start_job=True)
    annotations = job["metadata"].get("annotations") or {}
    if measure.rerun.id and annotations.get(RERUN_ANNOTATION, "") != measure.rerun.id:
        return going_on(Verdict(False, "Profiling", "starting anew"), delete_job=True)
    outcome = _outcome(request, facts)
    if isinstance(outcome, CostProfile):
        return going_on(Verdict(False, "Profiling", "keeping the result"), store=outcome)
    # Only the resource that made the Job knows what it should be; the others share it as it is.
    is_own = (job["metadata"].get("labels") or {}).get(POOL_LABEL) == pool.name
    if outcome is not None and is_own and annotations.get(JOB_DIGEST_ANNOTATION) != job_digest:
        # The spec has changed, so what stood in the way may be gone.
        return going_on(Verdict(False, "Profiling", "starting anew"), delete_job=True)
    if outcome is not None:
        return going_on(Verdict(False, outcome.reason, outcome.message))
    return going_on(Verdict(False, "Profiling", f"Job {job['metadata']['name']}"))


def _outcome(request: ProfileRequest, facts: ProfileFacts) -> CostProfile | Finding | None:
    """What the Job has come to: a profile, why there is none, or None while it runs."""
    assert facts.job is not None
    if not _is_finished(facts.job):
        return diagnose(facts.pods, facts.gpus)
    # After a disruption there is more than one; the newest has the result.
    for pod in sorted(facts.pods, key=lambda pod: pod["metadata"].get("creationTimestamp", ""), reverse=True):
        ended = _terminated(pod)
        message = str(ended.get("message", "")).strip()
        if ended.get("reason") == "OOMKilled":
            return Finding("OutOfMemory", f"pod {pod['metadata']['name']} was killed for its memory limit")
        if pod.get("status", {}).get("reason") == "DeadlineExceeded":
            return Finding("ProfilingTimedOut", "the Job has reached its deadline")
        if ended.get("exitCode") != 0:
            return Finding("ProfilingFailed", (message or f"exit status {ended.get('exitCode', 'unknown')}")[:1000])
        try:
            profile = parse_profile(message)
        except InvalidProfile as error:
            return Finding("ProfileInvalid", f"what the Job has written cannot be used: {error}")
        differences = request.mismatches(profile)
        return Finding("ProfileMismatch", "; ".join(differences)) if differences else profile
    return Finding("ProfilingFailed", "the Job has ended and its pod is gone")


def _keep(request: ProfileRequest, config_map: Mapping[str, Any] | None, key: str) -> _Kept | Finding:
    if config_map is None:
        return Finding("ProfileNotFound", "")
    name = config_map["metadata"]["name"]
    text = (config_map.get("data") or {}).get(key)
    if text is None:
        return Finding("ProfileNotFound", f"ConfigMap {name} has no key {key}")
    try:
        profile = parse_profile(text)
    except InvalidProfile as error:
        return Finding("ProfileInvalid", f"ConfigMap {name}: {error}")
    differences = request.mismatches(profile)
    if differences:
        return Finding("ProfileMismatch", f"ConfigMap {name}: {'; '.join(differences)}")
    rerun_id = (config_map["metadata"].get("annotations") or {}).get(RERUN_ANNOTATION, "")
    return _Kept(
        profile,
        MountedProfile(name, key, _text_digest(text)),
        ProfileInUse(name, profile.source, profile.measured_at, rerun_id),
    )


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _is_finished(job: Mapping[str, Any] | None) -> bool:
    conditions = (job or {}).get("status", {}).get("conditions") or ()
    return any(
        condition["type"] in ("Complete", "Failed") and condition["status"] == "True" for condition in conditions
    )


def _terminated(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    for container in pod.get("status", {}).get("containerStatuses") or ():
        if container["name"] == "profile":
            return (container.get("state") or {}).get("terminated") or {}
    return {}
