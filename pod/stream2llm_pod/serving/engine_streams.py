"""What serving needs of the engine. `stream2llm_pod.engine.frontend.EngineStreams` is it; tests have a scripted one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from stream2llm.keys import DEFAULT_TENANT


class StreamStatsLike(Protocol):
    """What the engine counted for one stream, complete with its last output."""

    @property
    def prefilled_before_finish_tokens(self) -> int: ...
    @property
    def preemptions(self) -> int: ...
    @property
    def recomputed_tokens(self) -> int: ...
    @property
    def swapped_tokens(self) -> int: ...
    @property
    def invalidated_tokens(self) -> int: ...


class EngineStreamsLike(Protocol):
    """Prompts that arrive in parts, as an engine takes them.

    Raises exceptions of its own for what it cannot serve; `ServingContext.explain` turns them into error codes.
    """

    async def open(
        self,
        stream_id: str,
        token_ids: Sequence[int],
        params: Any,
        *,
        lora_request: Any = None,
        cache_salt: Any = None,
        carried: Sequence[int] = (),
        carried_text: str = "",
        tenant: str = DEFAULT_TENANT,
        weight: float = 1.0,
    ) -> AsyncIterator[Any]:
        """Register a prompt with at least one token; its outputs (vLLM's RequestOutput, deltas) come after finish.

        `carried` is the part of the answer, and its text, that the reader has already; `weight` the tenant's.
        """
        ...

    async def append(self, stream_id: str, token_ids: Sequence[int]) -> None: ...
    async def update(self, stream_id: str, token_ids: Sequence[int]) -> None: ...
    async def finish(self, stream_id: str, token_ids: Sequence[int] | None = None) -> None: ...
    async def abort(self, stream_id: str) -> None: ...

    def progress(self, stream_id: str) -> tuple[int, int]:
        """(computed, invalidated) tokens, as far as the engine has told; raises KeyError for an unknown stream."""
        ...
