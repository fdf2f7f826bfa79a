"""KV connector of ours: moves nothing, carries the scheduler's statistics."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from stream2llm_pod.engine.statistics import Reporter, StreamPromMetrics, StreamStats


class NothingToMove(KVConnectorMetadata):
    """The metadata of a step in which no block is copied."""


class StreamConnector(KVConnectorBase_V1, SupportsHMA):
    """Loaded with `kv_connector_module_path`; the scheduler attaches itself with `report_from`."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._reporter: Reporter | None = None

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    # ---------------------------------------------------------------- scheduler side
    def report_from(self, scheduler: Any) -> None:
        self._reporter = Reporter(scheduler)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        return

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return NothingToMove()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return False, None

    def get_kv_connector_stats(self) -> StreamStats | None:
        return None if self._reporter is None else self._reporter.take()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> StreamStats:
        return StreamStats(data=dict(data or {}))

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]
    ) -> StreamPromMetrics:
        return StreamPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # ---------------------------------------------------------------- worker side
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        return

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return
