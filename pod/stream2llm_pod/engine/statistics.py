"""The scheduler's statistics on their way from the engine core to /metrics of the API server.

They ride in vLLM's KV connector statistics, the one channel that takes free-form figures across the process boundary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from stream2llm_pod.engine.configuring import read_settings

TOTALS = (
    "preemptions_memory",
    "preemptions_policy",
    "recomputed_tokens",
    "prefill_tokens",
    "invalidated_tokens",
    "plan_seconds",
    "plans",
    "empty_plan_steps",
    "fallback_steps",
    "failed_requests",
)
GAUGES = ("open_streams", "parked_streams", "prefill_backlog_tokens", "kv_cache_usage_ratio")

latest_progress: dict[str, tuple[int, int]] = {}
"""In the API server: internal request id → (computed, invalidated) tokens, as last reported by the engine core."""


def difference(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """What to send: the growth of the totals, the present gauges, and the streams that moved."""
    changed = {name: now[name] - before.get(name, 0) for name in TOTALS if now[name] != before.get(name, 0)}
    changed.update({name: now[name] for name in GAUGES if now[name] != before.get(name)})
    if now["progress"]:
        changed["progress"] = {req_id: list(tokens) for req_id, tokens in now["progress"].items()}
    return changed


@dataclass
class StreamStats(KVConnectorStats):
    """`data`: growth of the totals, present gauges, and `progress`."""

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, value in other.data.items():
            if name in TOTALS:
                self.data[name] = self.data.get(name, 0) + value
            elif name == "progress":
                self.data[name] = {**self.data.get(name, {}), **value}
            else:
                self.data[name] = value
        return self

    def reduce(self) -> dict[str, int | float]:
        return {name: value for name, value in self.data.items() if name != "progress"}

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
        preemptions = self._counter_cls(
            name="stream2llm_preemptions_total",
            documentation="Requests whose KV cache was taken, by what happened to it and why.",
            labelnames=[*self._label_names, "kind", "cause"],
        )
        self._series = {
            "preemptions_memory": self._labelled(preemptions, "recompute", "memory"),
            "preemptions_policy": self._labelled(preemptions, "recompute", "policy"),
            "recomputed_tokens": self._counter("recomputed_tokens_total", "Tokens computed again after a preemption."),
            "prefill_tokens": self._counter("prefill_tokens_total", "Prompt tokens computed."),
            "invalidated_tokens": self._counter(
                "invalidated_tokens_total", "Computed tokens that an update of the context made worthless."
            ),
            "plan_seconds": self._counter("plan_seconds_total", "Time spent in planning, both phases."),
            "plans": self._counter("plans_total", "Steps that were planned."),
            "empty_plan_steps": self._counter(
                "empty_plan_steps_total", "Steps whose plan granted work and in which nothing ran. Should stay 0."
            ),
            "fallback_steps": self._counter("fallback_steps_total", "Steps handed to vLLM's own order as a guard."),
            "failed_requests": self._counter("failed_requests_total", "Requests ended for a prompt that cannot fit."),
            "open_streams": self._gauge("engine_open_streams", "Streams whose prompt may still grow."),
            "parked_streams": self._gauge("engine_parked_streams", "Streams that wait for their producer."),
            "prefill_backlog_tokens": self._gauge("prefill_backlog_tokens", "Known prompt tokens not yet computed."),
            "kv_cache_usage_ratio": self._gauge("kv_cache_usage_ratio", "KV blocks in use, 0 to 1."),
        }

    def _labelled(self, metric: Any, *extra: str) -> dict[int, Any]:
        return {engine: metric.labels(*values, *extra) for engine, values in self._label_values.items()}

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
            if name == "progress":
                latest_progress.update({req_id: (tokens[0], tokens[1]) for req_id, tokens in value.items()})
            elif name in TOTALS:
                self._series[name][engine_idx].inc(value)
            elif name in GAUGES:
                self._series[name][engine_idx].set(value)
