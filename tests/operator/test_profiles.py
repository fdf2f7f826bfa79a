from __future__ import annotations

import copy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from profiles import profile_text
from scenarios import MINIMAL, SETTINGS, pool

from stream2llm.costprofile import parse_profile
from stream2llm_operator.desired.naming import POOL_LABEL
from stream2llm_operator.desired.profiling import (
    JOB_DIGEST_ANNOTATION,
    RERUN_ANNOTATION,
    ProfileRequest,
    profile_request,
)
from stream2llm_operator.profiles import ProfileDecision, ProfileFacts, decide, find_bundled
from stream2llm_operator.status.diagnosing import Finding
from stream2llm_operator.status.reasons import REASONS

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
DIGEST = "d1"


def spec(**profile: Any) -> dict[str, Any]:
    made = copy.deepcopy(MINIMAL)
    made["engine"] = {"swap": {"cpu": "64Gi"}}
    if profile:
        made["costProfile"] = profile
    return made


def decided(facts: ProfileFacts, wanted: dict[str, Any] | None = None, digest: str = DIGEST) -> ProfileDecision:
    of = pool(spec() if wanted is None else wanted)
    request = profile_request(of, SETTINGS, "NVIDIA-H200")
    made = decide(of, request, None, facts, job_digest=digest, now=NOW)
    assert "Profiled" in REASONS[made.verdict.reason].conditions
    assert (made.store is not None) + made.start_job + made.delete_job <= 1
    return made


def config_map(text: str | None = None, rerun: str = "", key: str = "profile.json") -> dict[str, Any]:
    annotations = {RERUN_ANNOTATION: rerun} if rerun else {}
    return {
        "metadata": {"name": "kept", "annotations": annotations},
        "data": {key: profile_text() if text is None else text},
    }


def job(state: str = "", *, rerun: str = "", digest: str = DIGEST, by: str = "llama") -> dict[str, Any]:
    annotations = {JOB_DIGEST_ANNOTATION: digest, **({RERUN_ANNOTATION: rerun} if rerun else {})}
    conditions = [{"type": state, "status": "True"}] if state else []
    return {
        "metadata": {"name": "job", "uid": "j", "labels": {POOL_LABEL: by}, "annotations": annotations},
        "status": {"conditions": conditions},
    }


def ended(
    message: str = "", *, code: int = 0, reason: str = "Completed", created: str = "t0", **status: Any
) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return {
        "metadata": {"name": "job-pod", "creationTimestamp": created},
        "status": {"containerStatuses": [{"name": "profile", "state": state}], **status},
    }


def test_nothing_there_starts_the_job_and_pods_start_on_an_estimate() -> None:
    made = decided(ProfileFacts(None))
    assert (made.start_job, made.may_start_pods, made.mounted) == (True, True, None)
    assert (made.verdict.holds, made.verdict.reason) == (False, "Profiling")


def test_while_missing_wait_holds_the_pods_back() -> None:
    assert not decided(ProfileFacts(None), spec(measure={"whileMissing": "Wait"})).may_start_pods


def test_running_job_is_left_alone() -> None:
    made = decided(ProfileFacts(None, job()))
    assert (made.start_job, made.delete_job, made.store) == (False, False, None)
    assert made.verdict.message == "Job job"


def test_result_is_kept() -> None:
    made = decided(ProfileFacts(None, job("Complete"), [ended(profile_text())]))
    assert made.store is not None
    assert made.store.gpu == "NVIDIA-H200"


def test_after_a_disruption_the_newest_pod_has_the_result() -> None:
    pods = [ended("evicted", code=137, created="t1"), ended(profile_text(), created="t2")]
    assert decided(ProfileFacts(None, job("Complete"), pods)).store is not None


def test_kept_profile_is_used_and_its_job_is_cleared_away() -> None:
    made = decided(ProfileFacts(config_map(), job("Complete")))
    assert made.delete_job
    assert (made.verdict.holds, made.verdict.reason) == (True, "Measured")
    assert made.mounted is not None
    assert (made.mounted.config_map, made.mounted.key, len(made.mounted.digest)) == ("kept", "profile.json", 16)
    assert made.in_use is not None
    assert (made.in_use.source, made.in_use.measured_at) == ("measured", "2026-11-30T00:00:00Z")


@pytest.mark.parametrize(
    ("pod", "state", "reason", "words"),
    [
        (ended("no room for the KV cache", code=1, reason="Error"), "Failed", "ProfilingFailed", "no room for the KV"),
        (ended(code=137, reason="OOMKilled"), "Failed", "OutOfMemory", "pod job-pod was killed for its memory limit"),
        (
            ended(code=137, reason="Error") | {"status": {"reason": "DeadlineExceeded"}},
            "Failed",
            "ProfilingTimedOut",
            "",
        ),
        (ended("{}"), "Complete", "ProfileInvalid", "schema: is missing"),
        (ended(profile_text(gpu="NVIDIA-L4")), "Complete", "ProfileMismatch", "gpu: profile has NVIDIA-L4"),
    ],
)
def test_a_job_that_failed_says_why_and_is_not_tried_again(
    pod: dict[str, Any], state: str, reason: str, words: str
) -> None:
    made = decided(ProfileFacts(None, job(state), [pod]))
    assert (made.verdict.holds, made.verdict.reason) == (False, reason)
    assert words in made.verdict.message
    assert not made.start_job
    assert not made.delete_job


def test_a_failed_job_is_replaced_once_the_spec_has_changed() -> None:
    facts = ProfileFacts(None, job("Failed", digest="old"), [ended("no", code=1)])
    assert decided(facts).delete_job


def test_a_job_of_another_resource_is_not_judged_by_ours() -> None:
    facts = ProfileFacts(None, job("Failed", digest="old", by="other"), [ended("no", code=1)])
    made = decided(facts)
    assert not made.delete_job
    assert made.verdict.reason == "ProfilingFailed"


def test_a_job_that_runs_well_goes_on_though_the_spec_has_changed() -> None:
    assert not decided(ProfileFacts(None, job(digest="old"))).delete_job


def test_a_job_that_cannot_start_says_why() -> None:
    waiting = {"name": "profile", "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}
    pod = {"metadata": {"name": "job-pod"}, "status": {"containerStatuses": [waiting]}}
    assert decided(ProfileFacts(None, job(), [pod])).verdict.reason == "ImagePullFailed"
    assert decided(ProfileFacts(None, job(digest="old"), [pod])).delete_job


def test_rerun_measures_anew_while_the_old_profile_serves() -> None:
    wanted = spec(measure={"rerun": {"id": "r2"}})
    made = decided(ProfileFacts(config_map(rerun="r1")), wanted)
    assert made.start_job
    assert made.mounted is not None
    assert (made.verdict.holds, made.verdict.reason) == (True, "Remeasuring")
    assert decided(ProfileFacts(config_map(rerun="r1"), job("Failed", rerun="r1")), wanted).delete_job
    assert decided(ProfileFacts(config_map(rerun="r2")), wanted).verdict.reason == "Measured"


def test_age_measures_anew() -> None:
    assert not decided(ProfileFacts(config_map()), spec(measure={"maxAgeSeconds": 86_400})).start_job
    assert decided(ProfileFacts(config_map()), spec(measure={"maxAgeSeconds": 3_600})).start_job


def test_a_failing_rerun_shows_in_the_message_and_the_old_profile_serves() -> None:
    facts = ProfileFacts(config_map(rerun="r1"), job("Failed", rerun="r2"), [ended("broken", code=1)])
    made = decided(facts, spec(measure={"rerun": {"id": "r2"}}))
    assert made.verdict.holds
    assert made.verdict.message == "ProfilingFailed: broken"


@pytest.mark.parametrize(
    ("there", "reason"),
    [
        (None, "ProfileNotFound"),
        (config_map(key="other.json"), "ProfileNotFound"),
        (config_map("not JSON"), "ProfileInvalid"),
        (config_map(profile_text(tensor_parallel_size=8)), "ProfileMismatch"),
        (config_map(), "Provided"),
    ],
)
def test_provided_profile(there: dict[str, Any] | None, reason: str) -> None:
    made = decided(ProfileFacts(there), spec(configMapRef={"name": "kept", "key": "profile.json"}))
    assert made.verdict.reason == reason
    assert (made.mounted is not None) == (reason == "Provided")
    assert not made.start_job


def bundled_request(version: str = "0.32.0") -> ProfileRequest:
    settings = replace(SETTINGS, engine_version=version)
    made = profile_request(pool(spec(bundled={})), settings, "NVIDIA-H200")
    assert made is not None
    return made


def test_bundled_profile_is_copied_once_and_pods_read_it_at_once() -> None:
    request, profile = bundled_request(), parse_profile(profile_text(source="estimated"))
    wanted = spec(bundled={})
    made = decided(ProfileFacts(None, bundled=profile), wanted)
    assert made.store == profile
    assert made.mounted is not None
    assert (made.mounted.config_map, made.mounted.key) == (f"stream2llm-profile-{request.hash}", "profile.json")
    assert (made.verdict.holds, made.verdict.reason) == (True, "Bundled")
    assert made.verdict.message == "estimated from published figures"
    kept = {"metadata": {"name": made.mounted.config_map}, "data": {"profile.json": profile.to_json()}}
    again = decided(ProfileFacts(kept, bundled=profile), wanted)
    assert again.store is None
    assert again.mounted == made.mounted


def test_no_bundled_profile_that_fits_is_said_and_pods_start_without() -> None:
    made = decided(ProfileFacts(None), spec(bundled={}))
    assert (made.verdict.holds, made.verdict.reason) == (False, "ProfileNotFound")
    assert "NVIDIA-H200, meta-llama/Llama-3.1-8B-Instruct, tensor parallel 1" in made.verdict.message
    assert (made.mounted, made.store, made.may_start_pods) == (None, None, True)


def test_a_bundled_profile_must_fit_and_a_measured_one_is_better() -> None:
    estimated = parse_profile(profile_text(source="estimated", vllm_version="0.33.0"))
    measured = parse_profile(profile_text())
    other = parse_profile(profile_text(tensor_parallel_size=8))
    assert find_bundled([other], bundled_request(), "0.32.0") is None
    assert find_bundled([estimated, other, measured], bundled_request(), "0.32.0") == measured
    # An estimate does not depend on vLLM's version, what was measured does.
    found = find_bundled([measured, estimated], bundled_request("0.33.1"), "0.33.1")
    assert found == replace(estimated, vllm_version="0.33.1")


def test_a_bundled_and_a_measured_profile_of_one_engine_have_names_of_their_own() -> None:
    measured = profile_request(pool(spec(measure={})), SETTINGS, "NVIDIA-H200")
    assert measured is not None
    assert measured.hash != bundled_request().hash


def test_not_needed_without_a_choice() -> None:
    assert decided(ProfileFacts(None), MINIMAL).verdict.reason == "NotNeeded"
    assert not decided(ProfileFacts(None), MINIMAL).start_job


def test_unknown_gpu_is_said() -> None:
    unknown = Finding("GPUProductUnknown", "no node")
    made = decide(pool(spec()), None, unknown, ProfileFacts(None), job_digest="", now=NOW)
    assert (made.verdict.holds, made.verdict.reason, made.verdict.message) == (False, "GPUProductUnknown", "no node")
