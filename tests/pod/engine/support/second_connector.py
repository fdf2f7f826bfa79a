"""A KV connector that stands for somebody else's: it keeps a record and counts steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

CONFIGURATION = {
    "kv_connector": "SecondConnector",
    "kv_connector_module_path": "second_connector",
    "kv_role": "kv_both",
}


@dataclass
class Steps(KVConnectorStats):
    """`data`: {"steps": how many}."""

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        self.data["steps"] = self.data.get("steps", 0) + other.data["steps"]
        return self

    def reduce(self) -> dict[str, int | float]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not self.data


class Nothing(KVConnectorMetadata):
    """It asks its workers for nothing."""


class SecondConnector(KVConnectorBase_V1, SupportsHMA):
    """Offers no tokens, but hears everything."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.admitted: list[tuple[str, int]] = []
        self.finished: list[str] = []

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self.admitted.append((request.request_id, num_external_tokens))

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return Nothing()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self.finished.append(request.request_id)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, block_ids[0])

    def get_kv_connector_stats(self) -> Steps | None:
        return Steps(data={"steps": 1})

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Steps:
        return Steps(data=dict(data or {}))

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        return

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return
