"""The router's metrics. Every series exists from the start, at 0."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from stream2llm.errors import ErrorCode
from stream2llm_router.assigning import Lack

_LABELS = ("namespace", "pool")
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class RouterMetrics:
    """All series of one router, for the pool `<namespace>/<name>`."""

    def __init__(self, pool: str, registry: CollectorRegistry) -> None:
        self._own = dict(zip(_LABELS, pool.split("/"), strict=True))
        prefix = "stream2llm_router_"
        self.forward_seconds = Histogram(
            f"{prefix}forward_seconds", "Reading and moving one batch.", _LABELS, registry=registry, buckets=_BUCKETS
        ).labels(**self._own)
        self._assignments = Counter(
            f"{prefix}assignments_total", "Streams given to a pod.", (*_LABELS, "reason"), registry=registry
        )
        self.forwarded_entries = Counter(
            f"{prefix}forwarded_entries_total", "Entries passed on.", _LABELS, registry=registry
        ).labels(**self._own)
        self.adopted_streams = Counter(
            f"{prefix}adopted_streams_total", "Streams given to another pod.", _LABELS, registry=registry
        ).labels(**self._own)
        self._lag = Gauge(
            f"{prefix}lag_entries", "Entries waiting in ingress.", (*_LABELS, "tenant"), registry=registry
        )
        self.waiting_streams = Gauge(
            f"{prefix}waiting_streams", "Streams that wait for a pod.", _LABELS, registry=registry
        ).labels(**self._own)
        self._waiting_reason = Gauge(
            f"{prefix}waiting_reason",
            "1 for each reason why streams wait now.",
            (*_LABELS, "reason"),
            registry=registry,
        )
        self._rejected = Counter(
            "stream2llm_rejected_total", "Entries that were left out.", (*_LABELS, "code"), registry=registry
        )
        for reason in ("open", "held", "recovery", "drain"):
            self.assigned(reason, 0)
        self.waiting_for(frozenset())
        for code in ErrorCode:
            self.rejected(code, 0)

    def assigned(self, reason: str, count: int = 1) -> None:
        self._assignments.labels(**self._own, reason=reason).inc(count)

    def waiting_for(self, lacks: Collection[Lack]) -> None:
        for lack in Lack:
            self._waiting_reason.labels(**self._own, reason=lack).set(lack in lacks)

    def rejected(self, code: str, count: int = 1) -> None:
        self._rejected.labels(**self._own, code=code).inc(count)

    def forget_tenant(self, tenant: str) -> None:
        """A tenant that is not served any more has no lag."""
        with contextlib.suppress(KeyError):
            self._lag.remove(*self._own.values(), tenant)

    def lag(self, tenant: str, entries: int) -> None:
        self._lag.labels(**self._own, tenant=tenant).set(entries)
