"""A worker that only counts tokens, for long runs: it answers as fast as it is asked, and checks nothing."""

from __future__ import annotations

from typing import Any

SAMPLED = [3]
"""The answer to everything. Nobody changes it: what vLLM drops, it replaces."""


class CountingWorker:
    """Samples where a model runner would. `SimulatedWorker` does the same with all its values checked."""

    def __init__(self) -> None:
        self._known_tokens: dict[str, int] = {}

    @property
    def remembered(self) -> int:
        """Requests that the worker keeps state for."""
        return len(self._known_tokens)

    def forget(self) -> None:
        """Drop all requests' state."""
        self._known_tokens.clear()

    def execute(self, scheduled: Any) -> dict[str, list[int]]:
        """One step: request id → sampled tokens (none for a prompt that is not computed to its end)."""
        known_tokens, tokens = self._known_tokens, scheduled.num_scheduled_tokens
        for req_id in scheduled.finished_req_ids:
            known_tokens.pop(req_id, None)
        sampled: dict[str, list[int]] = {}
        for new in scheduled.scheduled_new_reqs:
            req_id = new.req_id
            known_tokens[req_id] = len(new.prefill_token_ids or new.prompt_token_ids)
            self._sample(sampled, req_id, new.num_computed_tokens + tokens[req_id])
        cached = scheduled.scheduled_cached_reqs
        for req_id, computed_tokens in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            self._sample(sampled, req_id, computed_tokens + tokens[req_id])
        return sampled

    def _sample(self, sampled: dict[str, list[int]], req_id: str, end: int) -> None:
        ends_prompt = end >= self._known_tokens[req_id]
        self._known_tokens[req_id] += ends_prompt
        sampled[req_id] = SAMPLED.copy() if ends_prompt else []
