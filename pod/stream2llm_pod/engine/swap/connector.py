"""KV connector of ours: swaps the KV of preempted requests, and carries the scheduler's statistics.

On the scheduler's side it decides nothing: the scheduler stores a victim's tokens before it frees their blocks
(`pool.store`), and vLLM asks for them back when it admits the request again. On the workers' side it copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from stream2llm_pod.engine.configuring import read_settings
from stream2llm_pod.engine.statistics import Reporter, StreamPromMetrics, StreamStats
from stream2llm_pod.engine.swap.backend import SwapBackend, TimedCopy, make_backend
from stream2llm_pod.engine.swap.hostpool import Copies, HostPool
from stream2llm_pod.engine.swap.metadata import SwapMetadata, SwapReport
from stream2llm_pod.engine.swap.regions import block_regions, bytes_per_block


class StreamConnector(KVConnectorBase_V1, SupportsHMA):
    """Loaded with `kv_connector_module_path`, alone or inside vLLM's MultiConnector; the scheduler attaches itself with
    `report_from`."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._reporter: Reporter | None = None
        ranks = int(vllm_config.parallel_config.tensor_parallel_size)
        self.block_bytes = bytes_per_block(kv_cache_config) * ranks if kv_cache_config is not None else 0
        """Of one block over all layers and ranks."""
        settings = read_settings(vllm_config.additional_config)
        slots = settings.swap_bytes // self.block_bytes if settings.swaps and self.block_bytes else 0
        block_size = int(vllm_config.cache_config.block_size)
        self.pool = HostPool(slots if role is KVConnectorRole.SCHEDULER else 0, block_size)
        self.on_restored: Callable[[str, int], None] = _ignore
        """Called with the request id and the number of tokens when vLLM admits a request with tokens of ours."""
        self.on_copies: Callable[[Copies], None] = _ignore
        """Called with the copies of each step that has any."""
        self.on_timed: Callable[[TimedCopy], None] = _ignore
        """Called for each copy that a rank has ended."""
        self._worker_slots = slots
        self.backend: SwapBackend | None = None
        """On a worker that swaps, once the KV cache is there."""

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    # ---------------------------------------------------------------- scheduler side
    def report_from(self, scheduler: Any) -> None:
        self._reporter = Reporter(scheduler)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        # Synchronously: the copy comes before the step's forward pass, so the request runs in this very step.
        restorable_tokens = self.pool.restorable_tokens(request.request_id, request.num_tokens)
        return max(restorable_tokens - num_computed_tokens, 0), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        req_id = request.request_id
        if num_external_tokens:
            end_tokens = self.pool.restorable_tokens(req_id, request.num_tokens)
            [block_ids] = blocks.get_block_ids()
            self.pool.restore(req_id, end_tokens - num_external_tokens, end_tokens, block_ids)
            self.on_restored(req_id, num_external_tokens)
        else:
            # It runs without them: the prefix cache or another connector had more.
            self.pool.drop(req_id)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        copies = self.pool.seal()
        if copies:
            self.on_copies(copies)
        return SwapMetadata(copies)

    def update_connector_output(self, connector_output: Any) -> None:
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, SwapReport):
            for copy in report.copies:
                self.on_timed(copy)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self.pool.drop(request.request_id)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, [])

    def reset_cache(self) -> bool | None:
        """vLLM resets caches when the weights have changed; what was computed with the old ones is worthless."""
        self.pool.drop_all()
        return True

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
    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        if self._worker_slots:
            self.backend = make_backend(block_regions(kv_caches, self._kv_cache_config), self._worker_slots)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        # Before anything of this step touches the blocks.
        copies = _copies(kv_connector_metadata)
        if copies.out and self.backend is not None:
            self.backend.copy_out(*map(list, zip(*copies.out, strict=True)))

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        copies = _copies(self._get_connector_metadata())
        if copies.into and self.backend is not None:
            self.backend.copy_in(*map(list, zip(*copies.into, strict=True)))

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return

    def build_connector_worker_meta(self) -> SwapReport | None:
        timings = self.backend.take_timings() if self.backend is not None else []
        return SwapReport(timings) if timings else None

    def shutdown(self) -> None:
        if self.backend is not None:
            self.backend.close()
            self.backend = None


def own_connector(connector: Any) -> StreamConnector | None:
    """Ours: `connector` itself, or one of those that vLLM's MultiConnector unites; None if it is not there."""
    if isinstance(connector, StreamConnector):
        return connector
    for part in getattr(connector, "sub_connectors", ()):
        if isinstance(part, StreamConnector):
            return part
    return None


def _copies(metadata: Any) -> Copies:
    assert isinstance(metadata, SwapMetadata)
    return metadata.copies


def _ignore(*_: object) -> None:
    return
