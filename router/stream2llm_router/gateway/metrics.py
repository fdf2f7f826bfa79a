"""The gateway's metrics. Every series exists from the start, at 0."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_LABELS = ("namespace", "pool")
_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
CLASSES = ("2xx", "4xx", "5xx")
OTHER = "other"


class GatewayMetrics:
    """Series of one router's HTTP side, for the pool `<namespace>/<name>`."""

    def __init__(self, pool: str, registry: CollectorRegistry) -> None:
        self._own = dict(zip(_LABELS, pool.split("/"), strict=True))
        prefix = "stream2llm_router_http_"
        self._requests = Counter(
            f"{prefix}requests_total", "Answered requests.", (*_LABELS, "route", "status"), registry=registry
        )
        self._seconds = Histogram(
            f"{prefix}seconds", "Until the end of the answer.", (*_LABELS, "route"), registry=registry, buckets=_BUCKETS
        )
        self.readers = Gauge(f"{prefix}readers", "Replies that are being read.", _LABELS, registry=registry).labels(
            **self._own
        )

    def expect(self, routes: list[str]) -> None:
        """Make the series of these routes."""
        for route in (*routes, OTHER):
            self._seconds.labels(**self._own, route=route)
            for status in CLASSES:
                self._requests.labels(**self._own, route=route, status=status)

    def answered(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(**self._own, route=route, status=f"{status // 100}xx").inc()
        self._seconds.labels(**self._own, route=route).observe(seconds)
