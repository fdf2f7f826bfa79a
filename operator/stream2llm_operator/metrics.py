"""The operator's own metrics, by Prometheus' rules."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from stream2llm_operator.status.reasons import REASONS
from stream2llm_operator.viewing import Body


class OperatorMetrics:
    """Every series exists from the start."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reconcile_seconds = Histogram(
            "stream2llm_operator_reconcile_seconds",
            "Time of one pass over a resource.",
            registry=registry,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
        )
        self.failures = Counter(
            "stream2llm_operator_reconcile_failures", "Passes that will be tried again.", registry=registry
        )
        self.writes = Counter(
            "stream2llm_operator_writes",
            "Requests to the API server that may change something. None while everything is as it should be.",
            registry=registry,
        )
        self._resources = Gauge(
            "stream2llm_operator_resources",
            "StreamingPrefills by the reason of their condition Ready.",
            ["reason"],
            registry=registry,
        )
        self._ready = Gauge(
            "stream2llm_pool_ready_replicas", "Pods that take streams.", ["namespace", "pool"], registry=registry
        )
        self._wanted = Gauge(
            "stream2llm_pool_replicas", "Pods that there are to be.", ["namespace", "pool"], registry=registry
        )
        self._waste_target = Gauge(
            "stream2llm_pool_preemption_waste_target_ratio",
            "Share of time lost to preemptions from which on pods are added.",
            ["namespace", "pool"],
            registry=registry,
        )
        self._scaling_ready = Gauge(
            "stream2llm_pool_scaling_ready",
            "1 while the autoscaler of a pool that has one works, else 0: the condition ScalingReady.",
            ["namespace", "pool"],
            registry=registry,
        )
        for reason in REASONS:
            self._resources.labels(reason).set(0)

    def count(self, bodies: Iterable[Body]) -> None:
        """Take the figures of all resources there are; those of others go."""
        tally: Tally[str] = Tally()
        self._ready.clear()
        self._wanted.clear()
        self._waste_target.clear()
        self._scaling_ready.clear()
        for body in bodies:
            status = body.get("status") or {}
            for condition in status.get("conditions") or ():
                if condition["type"] == "Ready":
                    tally[condition["reason"]] += 1
            metadata, spec = body["metadata"], body.get("spec") or {}
            # Pods and routers name the pool as Redis' keys do.
            own = f"{metadata['namespace']}/{metadata['name']}"
            pool = (spec.get("streams", {}).get("poolName") or own).split("/", 1)
            self._ready.labels(*pool).set(status.get("readyReplicas", 0))
            self._wanted.labels(*pool).set(spec.get("replicas", 1))
            if (scaling := spec.get("autoscaling")) is not None:
                percent = scaling.get("targets", {}).get("preemptionWastePercent", 2)
                self._waste_target.labels(*pool).set(percent / 100)
                works = any(
                    condition["type"] == "ScalingReady" and condition["status"] == "True"
                    for condition in status.get("conditions") or ()
                )
                self._scaling_ready.labels(*pool).set(works)
        for reason in REASONS:
            self._resources.labels(reason).set(tally[reason])
