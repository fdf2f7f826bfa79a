"""The serving side's Prometheus metrics; the engine's come through its connector on the same `/metrics`."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from stream2llm.errors import ErrorCode
from stream2llm_pod.serving.recent import RecentTimes
from stream2llm_pod.serving.streams import Phase

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_RATIOS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
_LABELS = ("namespace", "pool", "pod")


class ServingMetrics:
    """One pod's metrics, every series there from the start, so that a rate over a restart is never missing.

    `pool` is `<namespace>/<name>`.
    """

    def __init__(self, pool: str, pod: str, registry: CollectorRegistry = REGISTRY) -> None:
        namespace, name = pool.split("/", 1)
        own = (namespace, name, pod)
        prefix = "stream2llm_"

        def histogram(metric: str, text: str, buckets: Iterable[float]) -> Histogram:
            return Histogram(prefix + metric, text, _LABELS, buckets=tuple(buckets), registry=registry).labels(*own)

        def gauge(metric: str, text: str) -> Gauge:
            return Gauge(prefix + metric, text, _LABELS, registry=registry, multiprocess_mode="livesum").labels(*own)

        self.ttft = histogram("ttft_seconds", "From the finish of a stream's input to its first token.", _SECONDS)
        self.recent_ttft = RecentTimes()
        self.open_to_first_token = histogram(
            "open_to_first_token_seconds", "From the open of a stream to its first token.", _SECONDS
        )
        self.prefilled_before_finish = histogram(
            "prefilled_before_finish_ratio", "Share of the prompt that was computed before the finish.", _RATIOS
        )
        self.intake_lag = gauge("intake_lag_seconds", "Age in Redis of the last entry taken in from the pod log.")
        self.ready_timestamp = gauge("pod_ready_timestamp_seconds", "Unix time at which the pod began to take streams.")
        self.draining = gauge("pod_draining", "1 while the pod takes no new streams and finishes those it has.")
        open_streams = Gauge(
            prefix + "open_streams",
            "Streams that this pod holds, by state.",
            (*_LABELS, "state"),
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._open_streams = {
            phase: open_streams.labels(*own, phase.value) for phase in Phase if phase is not Phase.ENDED
        }
        rejected = Counter(
            prefix + "rejected",
            "Entries and streams that ended in an error, by code.",
            (*_LABELS, "code"),
            registry=registry,
        )
        self._rejected = {code: rejected.labels(*own, code.value) for code in ErrorCode}

    def rejected(self, code: ErrorCode) -> None:
        self._rejected[code].inc()

    def set_open_streams(self, counts: dict[Phase, int]) -> None:
        for phase, child in self._open_streams.items():
            child.set(counts.get(phase, 0))
