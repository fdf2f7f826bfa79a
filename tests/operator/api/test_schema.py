"""The CRD in a real API server: defaults, bounds and CEL rules, each with the message that a user reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiException

from stream2llm_operator.api.spec import Spec

pytestmark = pytest.mark.kubernetes


def merged(base: Any, patch: Any) -> Any:
    """A JSON merge patch."""
    if not isinstance(patch, dict) or not isinstance(base, dict):
        return patch
    result = {**base, **{key: merged(base.get(key), value) for key, value in patch.items()}}
    return {key: value for key, value in result.items() if value is not None}


def test_defaults_of_the_server_are_those_of_the_types(cluster: Any, minimal: dict[str, Any]) -> None:
    stored = cluster.create(minimal)["spec"]
    assert Spec.model_validate(stored) == Spec.model_validate(minimal)
    written = Spec.model_validate(minimal).model_dump(by_alias=True, exclude_none=True)
    for field in ("template",):
        written.pop(field)
    for path in (("router", "resources"), ("router", "template"), ("costProfile", "measure", "job", "template")):
        parent = written
        for name in path[:-1]:
            parent = parent[name]
        del parent[path[-1]]
    assert stored == written


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("no source", {"model": {"source": {"huggingFace": None}}}, "exactly one of huggingFace, pvc, image must be set"),
    (
        "two sources",
        {"model": {"source": {"pvc": {"claimName": "weights"}}}},
        "exactly one of huggingFace, pvc, image must be set",
    ),
    (
        "path out of the volume",
        {"model": {"source": {"huggingFace": None, "pvc": {"claimName": "w", "path": "a/../../etc"}}}},
        "path must stay inside the volume",
    ),
    (
        "two cost profiles",
        {"costProfile": {"measure": {}, "bundled": {}}},
        "exactly one of measure, bundled, configMapRef must be set",
    ),
    (
        "two caches",
        {"model": {"cache": {"pvc": {"claimName": "c"}, "emptyDir": {}}}},
        "exactly one of pvc, emptyDir must be set",
    ),
    (
        "password in the URL",
        {"streams": {"redis": {"url": "redis://:hunter2@valkey:6379"}}},
        "url must hold no password: use auth.secretRef",
    ),
    (
        "user and password in the URL",
        {"streams": {"redis": {"url": "rediss://default:hunter2@valkey:6379/0"}}},
        "url must hold no password: use auth.secretRef",
    ),
    (
        "password as a parameter",
        {"streams": {"redis": {"url": "redis://valkey:6379?password=hunter2"}}},
        "should match",
    ),
    ("unknown scheme", {"streams": {"redis": {"url": "http://valkey:6379"}}}, "should match"),
    (
        "certificates without TLS",
        {"streams": {"redis": {"tls": {"caRef": {"name": "ca", "key": "ca.crt"}}}}},
        "tls needs a url that begins with rediss",
    ),
    (
        "as many streams as sequences",
        {"engine": {"maxSequences": 128}},
        "streams.maxOpenStreams must be below engine.maxSequences",
    ),
    ("GPU for a CPU engine", {"engine": {"device": "CPU"}, "gpu": {}}, "gpu needs engine.device CUDA"),
    (
        "tensor parallelism on CPU",
        {"engine": {"device": "CPU", "parallelism": {"tensor": 2}}},
        "engine.parallelism.tensor above 1 needs engine.device CUDA",
    ),
    (
        "bounds the wrong way round",
        {"autoscaling": {"minReplicas": 9, "maxReplicas": 8}},
        "minReplicas must not be above maxReplicas",
    ),
    (
        "two autoscalers",
        {"autoscaling": {"maxReplicas": 8, "keda": {}, "hpa": {}}},
        "at most one of keda, hpa may be set",
    ),
    (
        "scale to zero without KEDA",
        {"autoscaling": {"minReplicas": 0, "maxReplicas": 8, "hpa": {}}},
        "minReplicas 0 needs KEDA",
    ),
    (
        "a rollout that cannot move",
        {"rollout": {"maxSurge": 0, "maxUnavailable": 0}},
        "maxSurge and maxUnavailable must not both be 0",
    ),
    ("negative replicas", {"replicas": -1}, "should be greater than or equal to 0"),
    ("unknown device", {"engine": {"device": "TPU"}}, 'Unsupported value: \\"TPU\\"'),
    ("a quantity that is none", {"engine": {"sharedMemory": "lots"}}, "should match"),
    (
        "a tenant twice",
        {"streams": {"tenants": [{"name": "a"}, {"name": "a"}]}},
        "Duplicate value",
    ),
    (
        "a tenant with a colon",
        {"streams": {"tenants": [{"name": "a:b"}]}},
        "should match",
    ),
    ("no tenant", {"streams": {"tenants": []}}, "should have at least 1 items"),
    ("pool name without a namespace", {"streams": {"poolName": "llama"}}, "should match"),
]


@pytest.mark.parametrize(("patch", "message"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_refused_at_once(cluster: Any, minimal: dict[str, Any], patch: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiException) as refusal:
        cluster.create(merged(minimal, patch))
    assert refusal.value.status == 422
    assert message in refusal.value.body


def test_name_leaves_room_for_the_suffixes_of_children(cluster: Any, minimal: dict[str, Any]) -> None:
    cluster.create(minimal, "n" * 45)
    with pytest.raises(ApiException) as refusal:
        cluster.create(minimal, "n" * 46)
    assert "the name may have at most 45 characters" in refusal.value.body


ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    ("a user name in the URL", {"streams": {"redis": {"url": "rediss://reader@valkey:6379/1"}}}),
    ("Sentinel", {"streams": {"redis": {"url": "redis+sentinel://a:26379,b:26379/main"}}}),
    ("a cluster with TLS", {"streams": {"redis": {"url": "rediss+cluster://a:6379,b:6379"}}}),
    ("image volume", {"model": {"source": {"huggingFace": None, "image": {"reference": "registry/model@sha256:0"}}}}),
    ("a profile from a ConfigMap", {"costProfile": {"measure": None, "configMapRef": {"name": "p", "key": "p.json"}}}),
    ("a template with any field", {"template": {"spec": {"nodeSelector": {"pool": "gpu"}, "newField": {"a": 1}}}}),
    ("whole numbers as quantities", {"streams": {"maxChunk": 1048576}}),
    ("a policy that only the operator knows", {"scheduling": {"policy": "nobody-knows"}}),
    ("scale to zero with KEDA", {"autoscaling": {"minReplicas": 0, "maxReplicas": 8, "keda": {}}}),
]


@pytest.mark.parametrize("patch", [case[1] for case in ACCEPTED], ids=[case[0] for case in ACCEPTED])
def test_accepted_and_kept(cluster: Any, minimal: dict[str, Any], patch: dict[str, Any]) -> None:
    spec = merged(minimal, patch)
    stored = cluster.create(spec)["spec"]
    assert merged(stored, spec) == stored
    assert Spec.model_validate(stored) == Spec.model_validate(spec)


IMMUTABLE: list[tuple[str, dict[str, Any], str]] = [
    ("server", {"streams": {"redis": {"url": "redis://other:6379"}}}, "redis cannot be changed"),
    (
        "password",
        {"streams": {"redis": {"auth": {"secretRef": {"name": "s", "key": "k"}}}}},
        "redis cannot be changed",
    ),
    ("pool", {"streams": {"poolName": "other/pool"}}, "poolName cannot be changed"),
]


@pytest.mark.parametrize(("patch", "message"), [case[1:] for case in IMMUTABLE], ids=[case[0] for case in IMMUTABLE])
def test_cannot_be_changed(cluster: Any, minimal: dict[str, Any], patch: dict[str, Any], message: str) -> None:
    cluster.create(minimal)
    with pytest.raises(ApiException) as refusal:
        cluster.patch({"spec": patch})
    assert message in refusal.value.body


def test_kubectl_scales_and_lists_and_explains(cluster: Any, minimal: dict[str, Any]) -> None:
    cluster.create({**minimal, "autoscaling": {"maxReplicas": 8}})
    cluster.kubectl("scale", "spf/pool", "--replicas=3")
    stored = json.loads(cluster.kubectl("get", "spf", "pool", "-o", "json"))
    assert stored["spec"]["replicas"] == 3
    heading, row = cluster.kubectl("get", "spf").splitlines()
    assert heading.split() == ["NAME", "MODEL", "GPU", "POLICY", "READY", "REPLICAS", "PROFILE", "REASON", "AGE"]
    assert row.split()[:3] == ["pool", "llama", "srpf"]
    assert "pool" in cluster.kubectl("get", "stream2llm", "-o", "name")
    explained = cluster.kubectl("explain", "streamingprefill.spec.drain.timeoutSeconds")
    assert "How long open streams may take before the pod is killed." in explained


def test_status_is_written_apart_from_the_spec(cluster: Any, minimal: dict[str, Any]) -> None:
    made = cluster.create(minimal)
    changed = cluster.custom.patch_namespaced_custom_object_status(
        *("stream2llm.io", "v1alpha1", cluster.namespace, "streamingprefills", "pool"),
        {"spec": {"replicas": 7}, "status": {"replicas": 1, "selector": "a=b"}},
    )
    assert changed["spec"]["replicas"] == 1
    assert changed["status"] == {"replicas": 1, "selector": "a=b"}
    assert changed["metadata"]["generation"] == made["metadata"]["generation"]


EXAMPLES = Path(__file__).resolve().parent.parent.parent.parent / "examples" / "kubernetes"


@pytest.mark.parametrize("name", ["cpu.yaml", "gpu.yaml", "redis-with-tls.yaml"])
def test_examples_are_accepted_and_have_no_unknown_field(cluster: Any, name: str) -> None:
    cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(EXAMPLES / name))
