from __future__ import annotations

import copy
from typing import Any

import pytest
from scenarios import FULL, MINIMAL

from stream2llm_operator.api.spec import Spec
from stream2llm_operator.desired.refusing import OWNED_FLAGS, POLICIES, refusals
from stream2llm_pod.scheduling.policies import POLICIES as POD_POLICIES
from stream2llm_pod.serving.command import OWNED_FLAGS as POD_OWNED_FLAGS


def refused(**changes: dict[str, Any]) -> list[tuple[str, str]]:
    spec = copy.deepcopy(MINIMAL)
    for name, change in changes.items():
        spec[name] = {**spec.get(name, {}), **change}
    return [(refusal.reason, refusal.message) for refusal in refusals(Spec.model_validate(spec))]


def test_scenarios_are_carried_out() -> None:
    assert refusals(Spec.model_validate(MINIMAL)) == []
    assert refusals(Spec.model_validate(FULL)) == []


def test_unknown_policy_names_those_that_there_are() -> None:
    assert refused(scheduling={"policy": "lru"}) == [
        (
            "UnknownPolicy",
            "scheduling.policy 'lru' is not one of default, fcfs, lcas, lcas-oldest, mcps, srpf, auto",
        )
    ]


@pytest.mark.parametrize(
    ("argument", "field"),
    [
        ("--dtype=half", "is set by model.dtype"),
        ("--max_model_len=4096", "is set by model.maxLengthTokens"),
        ("-tp", "is set by engine.parallelism.tensor"),
        ("-tp=2", "is set by engine.parallelism.tensor"),
        ("--scheduler-cls", "is set by the operator"),
        ("--port", "is set by the operator"),
    ],
)
def test_flags_of_typed_fields_are_refused(argument: str, field: str) -> None:
    ((reason, message),) = refused(engine={"extraArgs": ["--seed=1", argument]})
    assert reason == "ExtraArgConflict"
    assert message.startswith("engine.extraArgs: ")
    assert message.endswith(field)


def test_flags_of_vllm_alone_are_taken() -> None:
    assert refused(engine={"extraArgs": ["--kv-cache-dtype", "fp8", "--seed=1"]}) == []


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"spec": {"containers": [{"name": "engine", "args": []}]}}, "template: container engine must not set args"),
        ({"kind": "Pod"}, "template: kind is no part of a pod template; metadata and spec are"),
        ({"spec": []}, "template.spec must be an object"),
    ],
)
def test_templates_must_leave_what_the_operator_sets(template: dict[str, Any], message: str) -> None:
    assert refused(template=template) == [("TemplateConflict", message)]


@pytest.mark.parametrize("chunk", ["0", "500m", "1025Ki", "2Mi", "1.1M", "1P"])
def test_a_chunk_is_at_least_a_byte_and_at_most_what_the_protocol_takes(chunk: str) -> None:
    message = f"streams.maxChunk {chunk} must be from 1 byte to 1Mi"
    assert refused(streams={**MINIMAL["streams"], "maxChunk": chunk}) == [("InvalidValue", message)]


@pytest.mark.parametrize("chunk", [1, "1", "64k", "1Mi", "1048576", "0.5Mi"])
def test_every_way_to_write_a_chunk_s_size_is_taken(chunk: object) -> None:
    assert refused(streams={**MINIMAL["streams"], "maxChunk": chunk}) == []


def test_keda_needs_to_know_where_prometheus_is() -> None:
    message = "autoscaling.prometheus.serverAddress is needed to scale through KEDA"
    assert refused(autoscaling={"maxReplicas": 4}) == [("AutoscalingIncomplete", message)]
    assert refused(autoscaling={"maxReplicas": 4, "hpa": {}}) == []
    assert refused(autoscaling={"maxReplicas": 4, "prometheus": {"serverAddress": "http://p:9090"}}) == []


def test_operator_and_pod_agree() -> None:
    """The operator cannot import the pod, so it has lists of its own."""
    assert set(POD_OWNED_FLAGS) <= set(OWNED_FLAGS)
    assert set(POLICIES) == set(POD_POLICIES)
