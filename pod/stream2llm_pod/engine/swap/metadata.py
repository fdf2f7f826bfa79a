"""What travels between the scheduler and the workers with each step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from stream2llm_pod.engine.swap.backend import TimedCopy
from stream2llm_pod.engine.swap.hostpool import Copies


@dataclass
class SwapMetadata(KVConnectorMetadata):
    """Scheduler → workers: the copies of this step."""

    copies: Copies = field(default_factory=Copies)


@dataclass
class SwapReport(KVConnectorWorkerMetadata):
    """Workers → scheduler: copies that have ended, in the order they were given."""

    copies: list[TimedCopy]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """One list for all ranks. Each rank's shard takes its own time, and each observation counts."""
        assert isinstance(other, SwapReport)
        return SwapReport([*self.copies, *other.copies])


def copies_in(metadata: Any) -> Copies:
    """Our part of a step's metadata, which may be that of several connectors."""
    if isinstance(metadata, SwapMetadata):
        return metadata.copies
    for part in getattr(metadata, "metadata", ()):
        if isinstance(part, SwapMetadata):
            return part.copies
    return Copies()
