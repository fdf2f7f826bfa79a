"""vLLM 0.32: its private names, and the operations that our scheduler builds on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.request import RequestStatus

from stream2llm_pod.engine.compat.private_names import PrivateAttribute, PrivateMethod

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_REQUEST = "vllm.v1.request:Request"
_ASYNC_LLM = "vllm.v1.engine.async_llm:AsyncLLM"
_BLOCK_POOL = "vllm.v1.core.block_pool:BlockPool"
_TYPE_MANAGER = "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager"

NAMES: tuple[PrivateMethod | PrivateAttribute, ...] = (
    PrivateMethod(f"{_SCHEDULER}.schedule", ("throttle_prefills",)),
    PrivateMethod(f"{_SCHEDULER}.add_request", ("request",)),
    PrivateMethod(f"{_SCHEDULER}.update_from_output", ("scheduler_output", "model_runner_output")),
    PrivateMethod(f"{_SCHEDULER}.finish_requests", ("request_ids", "finished_status")),
    PrivateMethod(f"{_SCHEDULER}.get_num_unfinished_requests", ()),
    PrivateMethod(f"{_SCHEDULER}._free_request", ("request",)),
    PrivateMethod(f"{_SCHEDULER}._free_request_blocks", ("request",)),
    PrivateMethod(f"{_SCHEDULER}._request_blocks_can_be_freed", ("request",)),
    PrivateMethod(f"{_SCHEDULER}._preempt_request", ("request", "timestamp", "drop_stale_output")),
    PrivateMethod(f"{_SCHEDULER}._reserve_prefill_lookahead", ("request", "num_computed_tokens", "num_new_tokens")),
    PrivateMethod(f"{_SCHEDULER}._enqueue_waiting_request", ("request",)),
    PrivateMethod(f"{_SCHEDULER}._handle_blocked_waiting_request", ("request",)),
    PrivateMethod(f"{_REQUEST}.update_block_hashes", ()),
    PrivateAttribute(f"{_REQUEST}.structured_output_request"),
    PrivateMethod(
        "vllm.v1.structured_output.backend_types:StructuredOutputGrammar.accept_tokens", ("request_id", "tokens")
    ),
    PrivateMethod(f"{_BLOCK_POOL}.free_blocks", ("ordered_blocks",)),
    PrivateMethod(f"{_BLOCK_POOL}.get_num_free_blocks", ()),
    *(
        PrivateAttribute(f"{_SCHEDULER}.{name}")
        for name in (
            "waiting",
            "kv_holding_waiting",
            "deferred_waiting",
            "running",
            "num_waiting_for_streaming_input",
            "max_num_active_reqs",
            "max_num_running_reqs",
            "max_num_scheduled_tokens",
            "num_lookahead_tokens",
            "scheduler_reserve_full_isl",
            "reset_preempted_req_ids",
            "deferred_frees",
            "sched_step_seq",
            "requires_kv_delivery",
            "_inflight_prefills",
            "_pause_state",
        )
    ),
    *(
        PrivateAttribute(f"{_REQUEST}.{name}")
        for name in (
            "_all_token_ids",
            "_block_hasher",
            "drop_stale_output",
            "num_stale_output_tokens",
            "num_in_flight_tokens",
            "num_output_placeholders",
            "is_prefill_chunk",
            "skip_reading_prefix_cache",
        )
    ),
    PrivateAttribute("vllm.v1.core.kv_cache_manager:KVCacheManager.watermark_blocks"),
    PrivateAttribute(f"{_TYPE_MANAGER}.req_to_blocks"),
    PrivateAttribute(f"{_TYPE_MANAGER}.num_cached_block"),
)
"""What the scheduler leans on, in the engine core's process."""

FRONT_END_NAMES: tuple[PrivateMethod | PrivateAttribute, ...] = (
    PrivateMethod(f"{_ASYNC_LLM}.add_request", ("request_id", "prompt", "params")),
    PrivateMethod(f"{_ASYNC_LLM}.abort", ("request_id", "internal")),
    PrivateMethod("vllm.v1.engine.core_client:AsyncMPClient.add_request_async", ("request",)),
    PrivateMethod("vllm.v1.engine.detokenizer:IncrementalDetokenizer.from_new_request", ("tokenizer", "request")),
    PrivateMethod("vllm.v1.engine.output_processor:RequestOutputCollector.get", ()),
    PrivateAttribute("vllm.v1.engine.output_processor:RequestOutputCollector.request_id"),
    PrivateAttribute("vllm.v1.engine.output_processor:OutputProcessor.request_states"),
    PrivateAttribute("vllm.v1.engine.output_processor:OutputProcessor.tokenizer"),
    *(
        PrivateAttribute(f"vllm.v1.engine.output_processor:RequestState.{name}")
        for name in ("prompt_token_ids", "prompt_len", "detokenizer", "sent_tokens_offset")
    ),
    PrivateMethod("vllm.v1.engine.detokenizer:BaseIncrementalDetokenizer.update", ("new_token_ids", "stop_terminated")),
    PrivateMethod("vllm.v1.engine.detokenizer:BaseIncrementalDetokenizer.num_output_tokens", ()),
    PrivateAttribute("vllm.v1.engine.detokenizer:BaseIncrementalDetokenizer._last_output_text_offset"),
)
"""What the front end leans on, in the API server's process."""


class Upstream:
    """Operations on a scheduler and its requests. Stateless but for the scheduler it serves."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    @property
    def _manager(self) -> Any:
        return self._scheduler.kv_cache_manager.coordinator.single_type_managers[0]

    # ---------------------------------------------------------------- reading
    def blocks(self, req_id: str) -> list[Any]:
        """The KV blocks in the request's table (vLLM's own list)."""
        blocks: list[Any] = self._manager.req_to_blocks.get(req_id) or []
        return blocks

    def freeable_blocks(self, req_id: str) -> int:
        return sum(block.ref_cnt == 1 for block in self.blocks(req_id))

    def shared_prefix_blocks(self, req_id: str) -> int:
        """How many of its first blocks others hold too: their values outlive it."""
        shared = 0
        for block in self.blocks(req_id):
            if block.ref_cnt < 2 or block.block_hash is None:
                break
            shared += 1
        return shared

    def free_blocks(self) -> int:
        return int(self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def usable_blocks(self) -> int:
        """Blocks that requests can hold: all but the null block."""
        return int(self._scheduler.kv_cache_manager.block_pool.num_gpu_blocks) - 1

    def cached_prefix(self, request: Any) -> tuple[int, int]:
        """(tokens the prefix cache holds for `request`, how many of their blocks are in use by others)."""
        hit, hit_tokens = self._scheduler.kv_cache_manager.get_computed_blocks(request)[:2]
        return hit_tokens, sum(block.ref_cnt > 0 for block in hit.blocks[0]) if hit_tokens else 0

    def can_give_up_blocks(self, request: Any) -> bool:
        return bool(
            self._scheduler._request_blocks_can_be_freed(request)
            and request.status != RequestStatus.WAITING_FOR_REMOTE_KVS
        )

    def can_be_restored(self, request: Any) -> bool:
        """Whether vLLM would take computed tokens from elsewhere when it admits the request."""
        return not request.skip_reading_prefix_cache

    def prefilling(self) -> list[Any]:
        return list(self._scheduler._inflight_prefills)

    def anything_prefills(self) -> bool:
        return bool(self._scheduler._inflight_prefills)

    def todo_tokens(self, request: Any) -> int:
        """Tokens it could compute now."""
        if request.status in (
            RequestStatus.WAITING_FOR_STREAMING_REQ,
            RequestStatus.WAITING_FOR_REMOTE_KVS,
            RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
        ):
            return 0
        if request.status == RequestStatus.RUNNING:
            placeholders = request.num_output_placeholders
            if placeholders > 0 and (
                request.num_computed_tokens + 2 - placeholders >= request.num_prompt_tokens + request.max_tokens
            ):
                return 0
        elif request.num_stale_output_tokens and not request.drop_stale_output:
            return 0
        todo_tokens = request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
        return int(min(todo_tokens, self._scheduler.max_model_len - request.num_computed_tokens - 1))

    # ---------------------------------------------------------------- prompts
    def extend_prompt(self, request: Any, token_ids: list[int]) -> None:
        request._all_token_ids.extend(token_ids)
        # A new list: the worker in the same process shares the old one.
        request.prompt_token_ids = request.prompt_token_ids + token_ids
        request.num_prompt_tokens = len(request.prompt_token_ids)
        request.update_block_hashes()

    def replace_prompt(self, request: Any, token_ids: list[int], keep_tokens: int, block_hashes: list[Any]) -> None:
        """Replace all behind the first `keep_tokens`. `block_hashes` are those of the whole new prompt."""
        # In place: vLLM's read-only view wraps this very list.
        del request._all_token_ids[keep_tokens:]
        request._all_token_ids.extend(token_ids[keep_tokens:])
        request.prompt_token_ids = token_ids
        request.num_prompt_tokens = len(token_ids)
        if request._block_hasher is not None:
            request.block_hashes[:] = block_hashes

    def advance_grammar(self, request: Any, token_ids: Sequence[int]) -> bool:
        """Have a structured output's grammar take tokens that were not sampled here; True if there is none."""
        structured = request.structured_output_request
        grammar = getattr(structured, "grammar", None)
        return grammar is None or bool(grammar.accept_tokens(request.request_id, list(token_ids)))

    # ---------------------------------------------------------------- moving
    def dequeue(self, request: Any) -> None:
        """Take it out of whichever queue it is in."""
        scheduler = self._scheduler
        if request.status == RequestStatus.RUNNING:
            scheduler.running.remove(request)
        else:
            scheduler.waiting.remove_request(request)
            scheduler.kv_holding_waiting.remove_request(request)
            scheduler.deferred_waiting.discard(request)
            if request.status == RequestStatus.WAITING_FOR_STREAMING_REQ:
                scheduler.num_waiting_for_streaming_input -= 1
        scheduler._inflight_prefills.discard(request)

    def mark_output_stale(self, request: Any) -> None:
        """What is in flight belongs to the old prompt: have vLLM drop its output."""
        request.drop_stale_output = True
        request.num_stale_output_tokens = request.num_in_flight_tokens
        request.num_output_placeholders = 0
        request.spec_token_ids = []

    def readmit(self, request: Any, keep_tokens: int) -> None:
        """Hand it to `schedule()` as a new request that already holds `keep_tokens` computed tokens. The worker then
        rebuilds its state from the full prompt and block row, exactly as for any new request."""
        self.dequeue(request)
        self.mark_output_stale(request)
        request.num_computed_tokens = keep_tokens
        request.is_prefill_chunk = False
        if request.status != RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            request.status = RequestStatus.WAITING
        # Else a later KV load would resume it as preempted, with the prompt that the worker remembers.
        request.num_preemptions = 0
        self._scheduler._enqueue_waiting_request(request)

    def park(self, request: Any) -> None:
        """All that is known is computed: wait for the producer, holding the KV blocks."""
        self.dequeue(request)
        request.num_computed_tokens = min(request.num_computed_tokens, request.num_tokens)
        self.mark_output_stale(request)
        request.status = RequestStatus.WAITING_FOR_STREAMING_REQ
        self._scheduler.num_waiting_for_streaming_input += 1
        self._scheduler._enqueue_waiting_request(request)

    # ---------------------------------------------------------------- memory
    def truncate(self, request: Any, keep_tokens: int, *, same_values: bool) -> int:
        """Free the blocks behind `keep_tokens`; returns how many tokens were really kept.

        The block in which the prefix ends may be written to again only if nobody else can see it (unshared and not in
        the prefix cache) or if the same values are written (`same_values`). Otherwise the kept length is aligned down
        to the block.
        """
        if keep_tokens >= request.num_computed_tokens > 0:
            return int(request.num_computed_tokens)
        manager = self._manager
        blocks = manager.req_to_blocks.get(request.request_id)
        if blocks and keep_tokens % manager.block_size and not same_values:
            partial = blocks[keep_tokens // manager.block_size]
            if partial.ref_cnt > 1 or partial.block_hash is not None:
                keep_tokens -= keep_tokens % manager.block_size
        if not blocks or keep_tokens == 0:
            # Frees the bookkeeping of cached blocks too, which vLLM expects to be absent for a request without blocks.
            self._scheduler._free_request_blocks(request)
            return 0
        kept_blocks = -(-keep_tokens // manager.block_size)
        tail = blocks[kept_blocks:]
        del blocks[kept_blocks:]
        cached = manager.num_cached_block
        if request.request_id in cached:
            full_blocks = kept_blocks if same_values else keep_tokens // manager.block_size
            cached[request.request_id] = min(cached[request.request_id], full_blocks)
        if tail:
            if self._scheduler._request_blocks_can_be_freed(request):
                self._scheduler.kv_cache_manager.block_pool.free_blocks(reversed(tail))
            else:
                self._scheduler.deferred_frees.append((self._scheduler.sched_step_seq, tail))
        return keep_tokens

    def preempt_running(self, request: Any, timestamp_s: float) -> None:
        self._scheduler.running.remove(request)
        self._scheduler._preempt_request(request, timestamp_s, drop_stale_output=self._scheduler.requires_kv_delivery)

    def restart_as_new(self, request: Any) -> None:
        """Have a preempted request come back as a new one: the worker may remember another prompt, or a token that it
        sampled after an unfinished one."""
        self.mark_output_stale(request)
        request.status = RequestStatus.WAITING
        request.num_preemptions = 0

    def preempt_waiting(self, request: Any) -> None:
        """Take the blocks of one that is parked, or readmitted and not yet scheduled. vLLM itself never does this."""
        scheduler = self._scheduler
        self.dequeue(request)
        scheduler._free_request_blocks(request)
        self.mark_output_stale(request)
        request.num_computed_tokens = 0
        request.is_prefill_chunk = False
        request.status = RequestStatus.WAITING
        # The worker may hold a slot for it; this frees that slot with the next step.
        scheduler.reset_preempted_req_ids.add(request.request_id)
        scheduler._enqueue_waiting_request(request)

    # ---------------------------------------------------------------- the step
    def take_over_queues(self, make_queue: Callable[[], Any]) -> None:
        """Put our queues in the place of vLLM's, before any request is there."""
        self._scheduler.waiting = make_queue()
        self._scheduler.kv_holding_waiting = make_queue()

    def admit_by_first_chunk(self) -> None:
        """vLLM would admit a prompt only if all of it fits at once; the planner has its own rule."""
        self._scheduler.scheduler_reserve_full_isl = False

    def free_slots(self) -> int:
        scheduler = self._scheduler
        limit = min(scheduler.max_num_running_reqs, scheduler.max_num_active_reqs)
        return int(limit - len(scheduler.running) - scheduler.num_waiting_for_streaming_input)

    def parked_slots(self) -> int:
        return int(self._scheduler.num_waiting_for_streaming_input)

    def watermark_blocks(self) -> int:
        return int(self._scheduler.kv_cache_manager.watermark_blocks)

    def anything_in_flight(self) -> bool:
        return any(request.num_in_flight_tokens for request in self._scheduler.running)

    def paused(self) -> bool:
        return bool(self._scheduler._pause_state != PauseState.UNPAUSED)

    def holding_waiting(self) -> list[Any]:
        """Requests with KV blocks that wait for a slot or tokens, without the parked ones."""
        return [
            request
            for request in self._scheduler.kv_holding_waiting
            if request.status != RequestStatus.WAITING_FOR_STREAMING_REQ
        ]

    def promote_blocked(self) -> list[Any]:
        """Let vLLM move on what waits for a grammar or a KV transfer, since the plan hides such requests from its own
        loop; returns those that can run now."""
        scheduler = self._scheduler
        if len(scheduler.deferred_waiting) == scheduler.num_waiting_for_streaming_input:
            return []
        promoted = []
        for request in list(scheduler.deferred_waiting):
            if request.status == RequestStatus.WAITING_FOR_STREAMING_REQ:
                continue
            if scheduler._handle_blocked_waiting_request(request):
                scheduler.deferred_waiting.discard(request)
                promoted.append(request)
        return promoted


class FrontEnd:
    """The private side of vLLM's AsyncLLM, in the API server's process."""

    def __init__(self, engine_client: Any) -> None:
        self._engine = engine_client

    def knows(self, internal_id: str) -> bool:
        """Whether the request has not ended yet."""
        return internal_id in self._engine.output_processor.request_states

    async def start(self, external_id: str, prompt: Any, params: SamplingParams, lora_request: Any) -> Any:
        """Register a request; returns vLLM's collector of its outputs, which knows the internal id."""
        return await self._engine.add_request(external_id, prompt, params, lora_request=lora_request)

    async def abort(self, internal_id: str) -> None:
        # By the internal id: somebody else may use the same external one.
        await self._engine.abort(internal_id, internal=True)

    async def send(
        self, internal_id: str, token_ids: list[int], params: SamplingParams, lora_request: Any, cache_salt: str | None
    ) -> None:
        """Pass one more request of the same internal id to the engine core, past the output side."""
        await self._engine.engine_core.add_request_async(
            self._request(internal_id, token_ids, params, lora_request, cache_salt)
        )

    def fix_prompt(
        self, internal_id: str, token_ids: list[int], params: SamplingParams, carried: list[int], carried_text: str
    ) -> None:
        """The output side knows the prompt that the request began with; usage figures and the detokenizer (which looks
        back into the prompt) need the final one. Before the first output only. The detokenizer takes the `carried`
        tokens of the answer too, and goes on behind `carried_text`."""
        processor = self._engine.output_processor
        state = processor.request_states.get(internal_id)
        if state is None:
            return
        state.prompt_token_ids = token_ids
        state.prompt_len = len(token_ids)
        state.detokenizer = IncrementalDetokenizer.from_new_request(
            processor.tokenizer if params.detokenize else None,
            self._request(internal_id, token_ids, params, None, None),
        )
        if carried:
            state.detokenizer.update(carried, False)
            state.detokenizer._last_output_text_offset = len(carried_text)
            state.sent_tokens_offset = state.detokenizer.num_output_tokens()

    @staticmethod
    def _request(
        internal_id: str, token_ids: list[int], params: SamplingParams, lora_request: Any, cache_salt: str | None
    ) -> EngineCoreRequest:
        return EngineCoreRequest(
            request_id=internal_id,
            external_req_id=internal_id,
            prompt_token_ids=token_ids,
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=time.time(),
            # Both go into the block hashes, which an update takes over as they are.
            lora_request=lora_request,
            cache_salt=cache_salt,
            data_parallel_rank=None,
        )
