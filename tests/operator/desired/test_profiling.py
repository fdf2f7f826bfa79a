from __future__ import annotations

import copy
from typing import Any

import pytest
from profiles import profile_text
from scenarios import CPU, FULL, MINIMAL, SETTINGS, pool

from stream2llm.costprofile import parse_profile
from stream2llm_operator.desired.engine import engine_version
from stream2llm_operator.desired.profiling import JOB_DIGEST_ANNOTATION, ProfileRequest, job, profile_request

H200 = "NVIDIA-H200"


def request(spec: dict[str, Any], gpu: str | None = H200) -> ProfileRequest:
    made = profile_request(pool(spec), SETTINGS, gpu)
    assert made is not None
    return made


def test_request_is_the_profile_key_as_far_as_it_is_known() -> None:
    assert request(FULL) == ProfileRequest(
        gpu=H200,
        model="meta-llama/Llama-3.1-8B-Instruct",
        revision="0e9e39f",
        dtype="bfloat16",
        kv_cache_dtype="fp8",
        quantization="auto",
        tensor_parallel_size=2,
        block_size="auto",
        max_num_batched_tokens=16384,
        vllm_minor="0.33",
        max_length_tokens=16384,
    )
    assert request(CPU, None).gpu == "cpu"
    assert request(CPU, None).model == "tiny"


def test_unknown_gpu_or_version_asks_for_nothing_yet() -> None:
    assert profile_request(pool(MINIMAL), SETTINGS, None) is None
    nameless = copy.deepcopy(MINIMAL)
    nameless["engine"] = {"image": "registry.example/vllm:nightly"}
    assert profile_request(pool(nameless), SETTINGS, H200) is None


@pytest.mark.parametrize(
    ("engine", "version"),
    [
        ({}, "0.32.0"),
        ({"image": "vllm/vllm-openai:v0.33.1"}, "0.33.1"),
        ({"image": "host:5000/own/pod:2.1.0-vllm0.33.0"}, "0.33.0"),
        ({"image": "vllm/vllm-openai:v0.33.1", "versionOverride": "0.32.0"}, "0.32.0"),
        ({"image": "host:5000/own/pod"}, ""),
        ({"image": "own/pod@sha256:0123"}, ""),
    ],
)
def test_engine_version(engine: dict[str, Any], version: str) -> None:
    assert engine_version(pool({**MINIMAL, "engine": engine}), SETTINGS) == version


def test_resources_that_differ_only_in_serving_share_a_profile() -> None:
    other = copy.deepcopy(FULL)
    other["replicas"] = 9
    other["scheduling"]["policy"] = "srpf"
    other["template"] = {}
    assert request(other).hash == request(FULL).hash


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("engine", {"parallelism": {"tensor": 4}}),
        ("engine", {"maxBatchedTokens": 4096}),
        ("engine", {"versionOverride": "0.32.0"}),
        ("engine", {"extraArgs": ["--kv-cache-dtype=auto"]}),
        ("model", {"dtype": "float16"}),
    ],
)
def test_what_changes_the_costs_needs_another_profile(part: str, change: dict[str, Any]) -> None:
    other = copy.deepcopy(FULL)
    other[part] |= change
    assert request(other).hash != request(FULL).hash


def test_profile_that_was_measured_fits_what_the_engine_chose_by_itself() -> None:
    assert request(MINIMAL).mismatches(parse_profile(profile_text())) == []


def test_mismatch_names_both_sides() -> None:
    profile = parse_profile(profile_text(gpu="NVIDIA-L4", dtype="float16", vllm_version="0.33.0"))
    assert request({**MINIMAL, "model": {**MINIMAL["model"], "dtype": "bfloat16"}}).mismatches(profile) == [
        "gpu: profile has NVIDIA-L4, the resource needs NVIDIA-H200",
        "vllm_minor: profile has 0.33, the resource needs 0.32",
        "dtype: profile has float16, the resource needs bfloat16",
    ]


def test_job_runs_where_the_pods_will() -> None:
    of = pool(FULL)
    pod = job(of, SETTINGS, H200, request(FULL), [of])["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": H200, "zone": "a"}
    assert pod["runtimeClassName"] == "nvidia"
    assert {"key": "gpu-pool", "operator": "Exists"} in pod["tolerations"]
    assert pod["priorityClassName"] == "low"
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    (container,) = pod["containers"]  # without the sidecar of the serving pods
    assert container["resources"] == {
        "limits": {"nvidia.com/gpu": "2", "memory": "96Gi"},
        "requests": {"cpu": "8"},
    }
    assert pod["activeDeadlineSeconds"] == 900


def test_job_is_owned_by_all_that_need_it_and_has_no_deadline_of_its_own() -> None:
    first, second = pool(FULL), pool(FULL, "other", "99999999-2222-3333-4444-555555555555")
    made = job(first, SETTINGS, H200, request(FULL), [first, second])
    assert [owner["name"] for owner in made["metadata"]["ownerReferences"]] == ["llama", "other"]
    assert not any(owner.get("controller") for owner in made["metadata"]["ownerReferences"])
    assert made["spec"]["backoffLimit"] == 0
    assert "activeDeadlineSeconds" not in made["spec"]


def test_job_digest_follows_the_pod_alone() -> None:
    def digest(spec: dict[str, Any]) -> str:
        made = job(pool(spec), SETTINGS, H200, request(spec), [pool(spec)])
        return str(made["metadata"]["annotations"][JOB_DIGEST_ANNOTATION])

    other = copy.deepcopy(FULL)
    other["replicas"] = 9
    assert digest(other) == digest(FULL)
    other["template"]["spec"]["nodeSelector"] = {"zone": "b"}
    assert digest(other) != digest(FULL)
