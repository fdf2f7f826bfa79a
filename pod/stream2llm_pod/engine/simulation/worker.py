"""What a worker remembers between steps, and the checks that a real one cannot make.

The KV cache holds, for each slot, the digest of all tokens up to the one whose key and value belong there. So each step
can check that every request attends to exactly its own tokens: a stale block, a block shared wrongly, a token that was
never sent or a prompt that was replaced behind the worker's back is an error at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stream2llm_pod.engine.simulation.tokens import Digests, next_token, prefix_digests
from stream2llm_pod.engine.swap.metadata import copies_in


class InconsistentStep(AssertionError):
    """The scheduler asked for something that a real worker would have computed wrongly."""


class _Tokens:
    """A growing token list with the digest of each prefix."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self.ids = list(token_ids)
        self._digests = prefix_digests(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def digests(self) -> Digests:
        return self._digests[: len(self.ids)]

    def append(self, token_id: int) -> None:
        length = len(self.ids)
        if length == len(self._digests):
            grown = np.empty(max(2 * length, 16), dtype=np.uint64)
            grown[:length] = self._digests
            self._digests = grown
        self._digests[length] = prefix_digests([token_id], int(self._digests[length - 1]))[0]
        self.ids.append(token_id)

    def cut(self, length: int) -> None:
        del self.ids[length:]


@dataclass(slots=True)
class _Remembered:
    tokens: _Tokens
    prompt_tokens: int
    block_ids: list[int]
    step: int
    """The last step in which it took part."""


class SimulatedWorker:
    """Follows the model runner's bookkeeping: version 1, or 2 where `forgets_preempted` (as `use_v2_model_runner`)."""

    def __init__(self, num_blocks: int, block_size: int, vocabulary: int, *, forgets_preempted: bool = False) -> None:
        self._block_size = block_size
        self._vocabulary = vocabulary
        self.forgets_preempted = forgets_preempted
        self._kv = np.zeros((num_blocks, block_size), dtype=np.uint64)
        self._host: dict[int, Digests] = {}
        self._requests: dict[str, _Remembered] = {}
        self._step = 0

    @property
    def remembered(self) -> int:
        """Requests that the worker keeps state for."""
        return len(self._requests)

    def forget(self) -> None:
        """Drop all requests' state."""
        self._requests.clear()

    def execute(self, scheduled: Any) -> dict[str, list[int]]:
        """One step: request id → sampled tokens (none for a prompt that is not computed to its end).

        Raises InconsistentStep where a real worker would have computed something wrong.
        """
        self._step += 1
        self._copy(scheduled)
        starts = self._remember(scheduled)
        if starts.keys() != scheduled.num_scheduled_tokens.keys():
            raise InconsistentStep(
                f"requests {sorted(starts)} are described, {sorted(scheduled.num_scheduled_tokens)} have tokens"
            )
        spans = {
            req_id: (starts[req_id], starts[req_id] + tokens)
            for req_id, tokens in scheduled.num_scheduled_tokens.items()
        }
        # As in a forward pass: every request writes before any attends, so one may use what another writes now.
        for req_id, (start, end) in spans.items():
            self._write(req_id, start, end)
        for req_id, (_, end) in spans.items():
            self._check(req_id, end)
        return {req_id: self._sample(req_id, end) for req_id, (_, end) in spans.items()}

    def _copy(self, scheduled: Any) -> None:
        """Swap blocks of digests: all out, then all in, as the connector's workers do."""
        copies = copies_in(scheduled.kv_connector_metadata)
        if copies.into and not scheduled.has_sync_kv_loads:
            raise InconsistentStep("blocks come back from the host after the forward pass that needs them")
        for block_id, slot in copies.out:
            self._host[slot] = self._kv[block_id].copy()
        for slot, block_id in copies.into:
            if slot not in self._host:
                raise InconsistentStep(f"host slot {slot} is read and was never written")
            self._kv[block_id] = self._host[slot]

    def _remember(self, scheduled: Any) -> dict[str, int]:
        """Apply what the scheduler says has changed; returns request id → computed tokens."""
        for req_id in scheduled.finished_req_ids:
            self._requests.pop(req_id, None)
        if self.forgets_preempted:
            for req_id in scheduled.preempted_req_ids or ():
                self._requests.pop(req_id, None)
        starts = {}
        for new in scheduled.scheduled_new_reqs:
            token_ids = new.prefill_token_ids or new.prompt_token_ids
            self._requests[new.req_id] = _Remembered(
                _Tokens(token_ids), len(new.prompt_token_ids), list(new.block_ids[0]), self._step
            )
            starts[new.req_id] = new.num_computed_tokens
        cached = scheduled.scheduled_cached_reqs
        for i, req_id in enumerate(cached.req_ids):
            request = self._requests.get(req_id)
            if request is None:
                raise InconsistentStep(f"{req_id} is scheduled as known, and the worker does not know it")
            self._recall(request, req_id, cached, i)
            starts[req_id] = cached.num_computed_tokens[i]
        return starts

    def _recall(self, request: _Remembered, req_id: str, cached: Any, i: int) -> None:
        length = request.prompt_tokens + cached.num_output_tokens[i]
        if length < len(request.tokens):
            # Sampled tokens that the scheduler dropped.
            request.tokens.cut(length)
        told = cached.all_token_ids.get(req_id)
        if told is not None and request.step != self._step - 1 and list(told[:length]) != request.tokens.ids[:length]:
            raise InconsistentStep(f"{req_id}: the worker's tokens differ from the scheduler's")
        new_block_ids = cached.new_block_ids[i]
        if req_id in cached.resumed_req_ids:
            request.block_ids = list(new_block_ids[0])
        elif new_block_ids is not None:
            request.block_ids.extend(new_block_ids[0])
        request.step = self._step

    def _write(self, req_id: str, start: int, end: int) -> None:
        request = self._requests[req_id]
        if start >= end:
            raise InconsistentStep(f"{req_id}: nothing to compute")
        if end > len(request.tokens):
            raise InconsistentStep(f"{req_id}: tokens up to {end} are scheduled, {len(request.tokens)} were given")
        if end > len(request.block_ids) * self._block_size:
            raise InconsistentStep(f"{req_id}: {len(request.block_ids)} blocks do not hold {end} tokens")
        if len(set(request.block_ids)) != len(request.block_ids) or 0 in request.block_ids:
            raise InconsistentStep(f"{req_id}: blocks {request.block_ids} repeat, or hold the null block")
        positions = np.arange(start, end)
        blocks = np.array(request.block_ids)[positions // self._block_size]
        self._kv[blocks, positions % self._block_size] = request.tokens.digests[start:end]

    def _check(self, req_id: str, end: int) -> None:
        request = self._requests[req_id]
        attended = self._kv[request.block_ids[: -(-end // self._block_size)]].reshape(-1)[:end]
        wrong = np.flatnonzero(attended != request.tokens.digests[:end])
        if len(wrong):
            position = int(wrong[0])
            block_id = request.block_ids[position // self._block_size]
            raise InconsistentStep(
                f"{req_id}: {len(wrong)} of {end} KV entries are foreign, first that at {position} in block {block_id}"
            )

    def _sample(self, req_id: str, end: int) -> list[int]:
        tokens = self._requests[req_id].tokens
        if end < len(tokens):
            return []
        token_id = next_token(int(tokens.digests[-1]), self._vocabulary)
        tokens.append(token_id)
        return [token_id]
