"""A StreamingPrefill as the pure parts see it, and what the operator was started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stream2llm.costprofile import CostProfile
from stream2llm_operator.api.spec import Spec


@dataclass(frozen=True, slots=True)
class Pool:
    """One resource that the API server has accepted."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: Spec

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Pool:
        """From the object. Raises pydantic's ValidationError where an older CRD has let something through."""
        metadata = body["metadata"]
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata.get("generation", 0),
            spec=Spec.model_validate(body["spec"]),
        )

    @property
    def redis_pool(self) -> str:
        """The pool in the Redis keys."""
        return self.spec.streams.pool_name or f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PodMonitorSettings:
    """How Prometheus should read pods and routers. interval: a duration of Prometheus', such as `15s`."""

    labels: Mapping[str, str] = field(default_factory=dict)
    interval: str = "15s"


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """What the chart sets. Images are references; the engine version is that of vLLM in the default images."""

    image_cuda: str = "stream2llm-pod:latest"
    image_cpu: str = "stream2llm-pod:cpu"
    image_router: str = "stream2llm-router:latest"
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    engine_version: str = "0.32.0"
    monitoring_namespace_labels: Mapping[str, str] = field(default_factory=dict)
    """Namespaces with these labels may read the pods' metrics; none: only routers reach the pods."""
    pod_monitor: PodMonitorSettings | None = None
    """None: no PodMonitors are made."""
    bundled: tuple[CostProfile, ...] = ()
    """Cost profiles that came with the operator."""
