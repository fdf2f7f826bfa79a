"""The scheduler's statistics on their way from the engine core to /metrics of the API server.

They ride in vLLM's KV connector statistics, the one channel that takes free-form figures across the process boundary.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from stream2llm_pod.engine.configuring import read_settings
from stream2llm_pod.engine.counting import CURVES, DIRECTIONS, GAUGES, MAX_DURATIONS, PREEMPTIONS, TOTALS, named

DURATIONS = "plan_durations_s"
PROGRESS = "progress"

REPORT_EVERY_S = 0.1
PLAN_BUCKETS_S = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 1e-1)

latest_progress: dict[str, tuple[int, int]] = {}
"""In the API server: internal request id → (computed, invalidated) tokens, as last reported by the engine core, for
the ids that somebody entered."""


class Reporter:
    """Collects from a scheduler what has changed since the last report: at most ten times a second, and once more when
    the engine is about to idle, because no step will ask again."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._reported: dict[str, Any] = {}
        self._due_s = 0.0

    def take(self) -> StreamStats | None:
        now_s = time.monotonic()
        if now_s < self._due_s and self._scheduler.has_unfinished_requests():
            return None
        self._due_s = now_s + REPORT_EVERY_S
        counters = self._scheduler.counters
        changed: dict[str, Any] = {}
        for name, value in counters.figures().items():
            before = self._reported.get(name, 0)
            if value != before:
                changed[name] = value - before if name in TOTALS else value
                self._reported[name] = value
        if counters.plan_durations_s:
            changed[DURATIONS], counters.plan_durations_s = counters.plan_durations_s, []
        if counters.progress:
            changed[PROGRESS] = {req_id: list(tokens) for req_id, tokens in counters.progress.items()}
            counters.progress.clear()
        return StreamStats(data=changed) if changed else None


def joined(earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """Two reports as one."""
    both = {**earlier, **later}
    for name in earlier.keys() & later.keys():
        if name in TOTALS:
            both[name] = earlier[name] + later[name]
        elif name == DURATIONS:
            both[name] = [*earlier[name], *later[name]][-MAX_DURATIONS:]
        elif name == PROGRESS:
            both[name] = {**earlier[name], **later[name]}
    return both


@dataclass
class StreamStats(KVConnectorStats):
    """`data`: growth of the totals, present gauges, plan durations in seconds, and progress."""

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        self.data = joined(self.data, other.data)
        # For the front end only, which has seen it; a log line has no use for it.
        self.data.pop(PROGRESS, None)
        return self

    def reduce(self) -> dict[str, int | float]:
        """One figure each, for vLLM's log line."""
        figures = {name: value for name, value in self.data.items() if name not in (DURATIONS, PROGRESS)}
        durations_s = self.data.get(DURATIONS)
        if durations_s:
            figures["plan_ms_mean"] = round(1000 * sum(durations_s) / len(durations_s), 3)
        return figures

    def is_empty(self) -> bool:
        return not self.data


class StreamPromMetrics(KVConnectorPromMetrics):
    """The `stream2llm_*` series of the engine core. Every series exists from the start, at 0."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        settings = read_settings(vllm_config.additional_config)
        own = {"namespace": settings.namespace, "pool": settings.pool, "pod": settings.pod}
        self._label_names = [*own, *labelnames]
        self._label_values = {engine: [*own.values(), *values] for engine, values in per_engine_labelvalues.items()}
        self._plan_seconds = self._labelled(
            self._histogram_cls(
                name="stream2llm_plan_seconds",
                documentation="Time a step spends on deciding and carrying out, without vLLM's own part.",
                buckets=PLAN_BUCKETS_S,
                labelnames=self._label_names,
            )
        )
        self._series = {
            **self._family(
                self._counter_cls,
                "preemptions",
                "preemptions_total",
                "Requests whose KV cache was taken, by what happened to it and why.",
                ("kind", "cause"),
                PREEMPTIONS,
            ),
            **self._family(
                self._counter_cls,
                "preemption_cost_seconds",
                "preemption_cost_seconds_total",
                "What preemptions cost, as the cost profile predicts or as steps and copies were seen to take.",
                ("kind", "cause"),
                PREEMPTIONS,
            ),
            **self._family(
                self._counter_cls,
                "swapped_bytes",
                "swapped_bytes_total",
                "Bytes of KV cache copied to host memory and back.",
                ("direction",),
                [(direction,) for direction in DIRECTIONS],
            ),
            **self._family(
                self._gauge_cls,
                "correction",
                "cost_model_correction_ratio",
                "Observed cost by predicted cost, by curve; 0 without a cost profile.",
                ("curve",),
                [(curve,) for curve in CURVES],
            ),
            "recomputed_tokens": self._counter("recomputed_tokens_total", "Tokens computed again after a preemption."),
            "prefill_tokens": self._counter("prefill_tokens_total", "Prompt tokens computed."),
            "invalidated_tokens": self._counter(
                "invalidated_tokens_total", "Computed tokens that an update of the context made worthless."
            ),
            "empty_plan_steps": self._counter(
                "empty_plan_steps_total", "Steps whose plan granted work and in which nothing ran. Should stay 0."
            ),
            "fallback_steps": self._counter("fallback_steps_total", "Steps handed to vLLM's own order as a guard."),
            "internal_errors": self._counter(
                "engine_internal_errors_total", "Exceptions of the plug-in that were caught. Should stay 0."
            ),
            "ignored_operations": self._counter(
                "ignored_operations_total", "Operations that came too late or for no open stream."
            ),
            "failed_requests": self._counter("failed_requests_total", "Requests ended for a prompt that cannot fit."),
            "open_streams": self._gauge("engine_open_streams", "Streams whose prompt may still grow."),
            "parked_streams": self._gauge("engine_parked_streams", "Streams that wait for their producer."),
            "prefill_backlog_tokens": self._gauge("prefill_backlog_tokens", "Known prompt tokens not yet computed."),
            "prefill_backlog_seconds": self._gauge(
                "prefill_backlog_seconds", "Time that computing them will take this pod, if nothing else ran."
            ),
            "kv_cache_usage_ratio": self._gauge("kv_cache_usage_ratio", "KV blocks in use, 0 to 1."),
        }

    def _labelled(self, metric: Any, *extra: str) -> dict[int, Any]:
        return {engine: metric.labels(*values, *extra) for engine, values in self._label_values.items()}

    def _family(
        self,
        make: Any,
        figure: str,
        name: str,
        documentation: str,
        label_names: tuple[str, ...],
        labels: Iterable[tuple[str, ...]],
    ) -> dict[str, dict[int, Any]]:
        """All series of one labelled metric, by the names that their figures travel under."""
        metric = make(
            name=f"stream2llm_{name}", documentation=documentation, labelnames=[*self._label_names, *label_names]
        )
        return {named(figure, *values): self._labelled(metric, *values) for values in labels}

    def _counter(self, name: str, documentation: str) -> dict[int, Any]:
        return self._labelled(
            self._counter_cls(name=f"stream2llm_{name}", documentation=documentation, labelnames=self._label_names)
        )

    def _gauge(self, name: str, documentation: str) -> dict[int, Any]:
        return self._labelled(
            self._gauge_cls(name=f"stream2llm_{name}", documentation=documentation, labelnames=self._label_names)
        )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, value in transfer_stats_data.items():
            if name in TOTALS:
                self._series[name][engine_idx].inc(value)
            elif name in GAUGES:
                self._series[name][engine_idx].set(value)
            elif name == DURATIONS:
                for duration_s in value:
                    self._plan_seconds[engine_idx].observe(duration_s)
            elif name == PROGRESS:
                for req_id, (computed_tokens, invalidated_tokens) in value.items():
                    if req_id in latest_progress:
                        latest_progress[req_id] = (computed_tokens, invalidated_tokens)
