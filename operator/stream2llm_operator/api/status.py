"""What the operator tells: `status` of a StreamingPrefill. Written on change only, so it holds no fast figures."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from stream2llm_operator.api.fields import Part

Text = Annotated[str, StringConstraints(max_length=512)]
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class Condition(Part):
    """One aspect of the resource's state, as Kubernetes' conditions are."""

    type: Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Z][A-Za-z]*$")]
    """What it is about."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Z][A-Za-z0-9]*$")]
    """Why, in one word of a fixed list (docs/reference/status.md)."""
    message: Annotated[str, StringConstraints(max_length=2048)] = ""
    """Why, for a person."""
    last_transition_time: Time
    """When `status` changed last."""
    observed_generation: Annotated[int, Field(ge=0)] = 0
    """The generation of the resource that this is about."""


class Address(Part):
    """Where clients reach the pool."""

    name: Literal["http", "openai", "redis"]
    """What speaks there: streams over HTTP, OpenAI's protocol, or Redis."""
    url: Text
    """The address, inside the cluster."""


class ProfileStatus(Part):
    """The cost profile in use."""

    config_map: Text = ""
    """The ConfigMap that holds it."""
    source: Annotated[str, StringConstraints(max_length=32)] = ""
    """`measured`, `estimated` or `imported`."""
    measured_at: Annotated[str, StringConstraints(max_length=64)] = ""
    """When it was measured."""
    rerun_id: Annotated[str, StringConstraints(max_length=63)] = ""
    """The last costProfile.measure.rerun.id that was carried out."""


class ScalingDecision(Part):
    """One change of the number of pods."""

    time: Time
    """When."""
    from_: Annotated[int, Field(ge=0, alias="from")]
    """Pods before."""
    to: Annotated[int, Field(ge=0)]
    """Pods after."""
    reason: Text
    """Why."""


class AutoscalingStatus(Part):
    """What the autoscaler wants."""

    backend: Annotated[str, StringConstraints(max_length=63)] = ""
    """What scales: `ScaledObject` or `HorizontalPodAutoscaler`."""
    current: Annotated[int, Field(ge=0)] | None = None
    """Pods asked for now."""
    desired: Annotated[int, Field(ge=0)] | None = None
    """Pods that it wants; in Preview, that it would want."""
    history: Annotated[list[ScalingDecision], Field(max_length=5)] = Field(default=[])
    """Its last five decisions."""


class Status(Part):
    """What is."""

    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The newest generation that the operator has seen."""
    replicas: Annotated[int, Field(ge=0)] | None = None
    """Pods that there are."""
    ready_replicas: Annotated[int, Field(ge=0)] | None = None
    """Pods that take streams."""
    selector: Text | None = None
    """Label selector of the pods, for autoscalers."""
    url: Text | None = None
    """The routers' address inside the cluster."""
    ingress_key_prefix: Text | None = None
    """Producers write to this Redis key with `:ingress:<tenant>` behind it."""
    addresses: Annotated[list[Address], Field(max_length=8, json_schema_extra={"x-map-key": "name"})] | None = None
    """Where clients reach the pool."""
    engine_version: Text | None = None
    """vLLM's version in the pods."""
    gpu_product: Text | None = None
    """The GPUs that the pods run on."""
    cost_profile: ProfileStatus | None = None
    """The cost profile in use."""
    autoscaling: AutoscalingStatus | None = None
    """What the autoscaler wants."""
    conditions: Annotated[list[Condition], Field(max_length=16, json_schema_extra={"x-map-key": "type"})] | None = None
    """Ready, Profiled, PodsReady, RouterReady, ScalingReady and Stalled."""
