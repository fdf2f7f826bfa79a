"""Streams inside vLLM's scheduler: append and update in any state, parking, and prompts that cannot fit."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import vllm
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import RequestStatus

from stream2llm_pod.engine.compat.selecting import checked_module
from stream2llm_pod.engine.configuring import read_settings
from stream2llm_pod.engine.costing import read_costs
from stream2llm_pod.engine.counting import Counters
from stream2llm_pod.engine.naming import about_request
from stream2llm_pod.engine.protocol import Op, OpKind, read_op
from stream2llm_pod.engine.refusing import unsupported_features
from stream2llm_pod.engine.sessions import Prompt, StreamSession
from stream2llm_pod.engine.swap.backend import Direction, TimedCopy
from stream2llm_pod.engine.swap.connector import own_connector
from stream2llm_pod.engine.swap.hostpool import Copies, HostPool
from stream2llm_pod.engine.tenancy import Tenants, read_share
from stream2llm_pod.scheduling.costs import Preemption
from stream2llm_pod.scheduling.prefix import common_prefix_tokens, to_tokens
from stream2llm_pod.scheduling.victims import Preemptions

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler as Base
else:
    Base = object

logger = logging.getLogger(__name__)

STATS_KEY = "stream2llm"
"""Where a finished stream's report rides in `kv_transfer_params`."""

MAX_PROGRESS_ENTRIES = 10_000
"""Bounds the progress report while nobody collects it (an engine without statistics)."""


class StreamingMixin(Base):
    """Adds streams to a vLLM scheduler. Put it before the scheduler class in the bases.

    Nothing here raises once the engine runs: an exception in the scheduler ends the engine for every tenant.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.settings = read_settings(self.vllm_config.additional_config)
        self.upstream = checked_module(vllm.__version__).Upstream(self)
        refused = unsupported_features(self)
        if refused:
            raise ValueError("stream2llm does not work with " + "; ".join(refused))
        self.streams: dict[str, StreamSession] = {}
        self.tenants = Tenants()
        self.counters = Counters()
        self.clock = time.monotonic
        self.limit_tokens = min(self.max_model_len - 1, self.upstream.usable_blocks() * self.block_size)
        self._open_ids: set[str] = set()
        self._pending_ids: set[str] = set()
        self._lost_tokens: dict[str, int] = {}
        self._spared_up_to_tokens: dict[str, int] = {}
        self._failures: list[tuple[int, EngineCoreOutput]] = []
        self._slot_victims: set[str] = set()
        self._may_swap = False
        self.host_pool = HostPool(0, self.block_size)
        self._block_bytes = 0
        self._attach_connector()
        self.costs = read_costs(self.settings, self.vllm_config)
        self.preemptions = Preemptions(self.settings.preemption, self.costs, self.host_pool.has_room)

    def _attach_connector(self) -> None:
        connector = own_connector(self.connector)
        if connector is None:
            return
        connector.report_from(self)
        connector.on_restored, connector.on_copies = self._note_restored, self._note_copies
        connector.on_timed = self._note_timed_copy
        self.host_pool, self._block_bytes = connector.pool, connector.block_bytes

    # ---------------------------------------------------------------- hooks for the planning side
    def on_changed(self, request: Any) -> None:
        """The request's rank, work or memory may have changed."""

    def on_gone(self, req_id: str) -> None:
        """The request has left the scheduler."""

    # ---------------------------------------------------------------- arrivals
    def add_request(self, request: Any) -> None:
        try:
            op = read_op(request.sampling_params.extra_args if request.sampling_params else None)
        except ValueError:
            # Written into the OpenAI API by somebody who is not our front end: serve it as the ordinary request it is.
            self.counters.ignored_operations += 1
            op = None
        existing = self.requests.get(request.request_id)
        if op is None:
            if existing is not None:
                self.counters.ignored_operations += 1
                return
            self._note_tenant(request)
            super().add_request(request)
            self._accept(request)
        elif existing is None:
            if op.kind is OpKind.OPEN:
                self._open(request, op)
            else:
                # The chunk raced with the stream's end.
                self.counters.ignored_operations += 1
        else:
            session = self.streams.get(request.request_id)
            if session is None or not session.open or op.kind is OpKind.OPEN or existing.is_finished():
                self.counters.ignored_operations += 1
            elif session.pending or existing.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
                session.pending.append((request, op))
                self._pending_ids.add(request.request_id)
            else:
                self._apply(existing, session, request, op)

    def _note_tenant(self, request: Any) -> None:
        share = read_share(request.sampling_params.extra_args) if request.sampling_params else None
        if share is not None:
            self.tenants.add(request.request_id, share)

    def _open(self, request: Any, op: Op) -> None:
        request.resumable = False
        self._note_tenant(request)
        if request.prompt_token_ids is None or request.mm_features or request.pooling_params is not None:
            super().add_request(request)
            self.fail(request, "a stream takes token ids only")
            return
        now_s = self.clock()
        session = StreamSession(
            request.request_id,
            Prompt(request.prompt_token_ids),
            request.max_tokens,
            now_s,
            now_s,
            open=not op.last,
            carried=op.carried,
        )
        self.streams[request.request_id] = session
        if session.open:
            self._open_ids.add(request.request_id)
            request.max_tokens = 1
        super().add_request(request)
        self._accept(request)

    def _accept(self, request: Any) -> None:
        if not self._fail_if_too_long(request):
            self.on_changed(request)

    def apply_pending(self) -> None:
        """Apply what arrived while a KV transfer was under way, for the streams whose transfer has ended."""
        for req_id in list(self._pending_ids):
            request, session = self.requests.get(req_id), self.streams.get(req_id)
            if request is None or session is None:
                self._pending_ids.discard(req_id)
                continue
            while session.pending and session.open and not request.is_finished():
                if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
                    break
                self._apply(request, session, *session.pending.pop(0))
            if not session.pending:
                self._pending_ids.discard(req_id)

    def _apply(self, request: Any, session: StreamSession, incoming: Any, op: Op) -> None:
        try:
            self._change_prompt(request, session, incoming, op)
        except Exception:
            logger.exception(
                *("operation %s of stream %s could not be applied", op.kind, session.req_id),
                extra=about_request(session.req_id),
            )
            self.counters.internal_errors += 1
            if not request.is_finished():
                self.fail(request, "internal error")

    def _change_prompt(self, request: Any, session: StreamSession, incoming: Any, op: Op) -> None:
        session.last_chunk_s = self.clock()
        known_tokens = request.num_tokens
        swapped_tokens = self.host_pool.tokens(session.req_id)
        computed_tokens = min(request.num_computed_tokens, known_tokens)
        session.computed_once_tokens = max(session.computed_once_tokens, computed_tokens)
        shared_tokens = known_tokens
        if op.kind is OpKind.UPDATE:
            new_tokens = to_tokens(incoming.prompt_token_ids)
            shared_tokens = common_prefix_tokens(session.prompt.tokens, new_tokens)
            self.upstream.replace_prompt(request, list(incoming.prompt_token_ids), shared_tokens, incoming.block_hashes)
            session.prompt.replace(new_tokens)
            session.computed_once_tokens = min(session.computed_once_tokens, shared_tokens)
            for marks in (self._lost_tokens, self._spared_up_to_tokens):
                if marks.get(session.req_id, 0) > shared_tokens:
                    marks[session.req_id] = shared_tokens
            self._note_invalidated(session, self.host_pool.trim(session.req_id, shared_tokens))
        elif not op.empty:
            chunk = list(incoming.prompt_token_ids)
            self.upstream.extend_prompt(request, chunk)
            session.prompt.append(chunk)
        if op.last or op.kind is OpKind.FINISH:
            session.open = False
            self._open_ids.discard(session.req_id)
            request.max_tokens = session.max_tokens
            session.prefilled_before_finish_tokens = min(shared_tokens, max(computed_tokens, swapped_tokens))
        if self._fail_if_too_long(request):
            return
        if session.open and request.num_tokens == known_tokens == shared_tokens:
            return
        # One token at least is left to compute, or nothing would ever be sampled.
        keep_tokens = min(shared_tokens, computed_tokens, request.num_tokens - 1)
        kept_tokens = self.upstream.truncate(request, keep_tokens, same_values=shared_tokens >= computed_tokens)
        if shared_tokens < computed_tokens:
            self._note_invalidated(session, computed_tokens - kept_tokens)
        self.upstream.readmit(request, kept_tokens)
        self._report_progress(session, request)
        self.on_changed(request)

    def _note_invalidated(self, session: StreamSession, tokens: int) -> None:
        session.invalidated_tokens += tokens
        self.counters.invalidated_tokens += tokens

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        ready = bool(super()._handle_blocked_waiting_request(request))
        session = self.streams.get(request.request_id)
        if ready and session is not None and session.carried:
            carried, session.carried = session.carried, ()
            if not self.upstream.advance_grammar(request, carried):
                logger.error(
                    *("stream %s: the answer so far does not fit its structured output", session.req_id),
                    extra=about_request(session.req_id),
                )
                self.counters.internal_errors += 1
        return ready

    # ---------------------------------------------------------------- prompts that cannot fit
    def _fail_if_too_long(self, request: Any) -> bool:
        if request.num_tokens <= self.limit_tokens:
            return False
        self.fail(request, f"prompt of {request.num_tokens} tokens is beyond the limit of {self.limit_tokens} tokens")
        return True

    def end_if_outgrown(self, request: Any) -> bool:
        """End a request whose output has filled the whole KV pool: vLLM would preempt and recompute it for ever."""
        if request.num_tokens <= self.upstream.usable_blocks() * self.block_size or request.num_in_flight_tokens:
            return False
        self._end(request, RequestStatus.FINISHED_LENGTH_CAPPED, FinishReason.LENGTH, None)
        return True

    def fail(self, request: Any, why: str) -> None:
        """End one request with an error; vLLM would keep it for ever."""
        logger.warning("request %s ended: %s", request.request_id, why, extra=about_request(request.request_id))
        self.counters.failed_requests += 1
        self._end(request, RequestStatus.FINISHED_ERROR, FinishReason.ERROR, why)

    def _end(self, request: Any, status: Any, finish_reason: FinishReason, stop_reason: str | None) -> None:
        session = self.streams.get(request.request_id)
        output = EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=[],
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            kv_transfer_params={STATS_KEY: session.report()} if session is not None else None,
        )
        self._failures.append((request.client_index, output))
        self.finish_requests(request.request_id, status)

    # ---------------------------------------------------------------- after a step
    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
        finished_prefix = self._suppress_open(scheduler_output, model_runner_output) if self._open_ids else ()
        outputs: dict[int, Any] = super().update_from_output(scheduler_output, model_runner_output)
        for request in finished_prefix:
            if not request.is_finished() and request.status == RequestStatus.RUNNING:
                self.upstream.park(request)
                session = self.streams[request.request_id]
                session.computed_once_tokens = request.num_computed_tokens
                self.on_changed(request)
        if self.streams:
            for client_outputs in outputs.values():
                for output in client_outputs.outputs:
                    reported = self.streams.get(output.request_id)
                    if reported is not None:
                        # With every output: the front end may end the stream at a stop string of its own accord.
                        output.kv_transfer_params = {**(output.kv_transfer_params or {}), STATS_KEY: reported.report()}
        for client_index, output in self._failures:
            if client_index not in outputs:
                outputs[client_index] = EngineCoreOutputs()
            # A new list: the default one may be shared.
            outputs[client_index].outputs = [*outputs[client_index].outputs, output]
        self._failures.clear()
        return outputs

    def _suppress_open(self, scheduler_output: Any, model_runner_output: Any) -> list[Any]:
        """Drop what was sampled after prompts that are not whole; returns the requests that have computed all they
        know."""
        finished_prefix = []
        sampled = model_runner_output.sampled_token_ids
        scheduled = scheduler_output.num_scheduled_tokens
        few, many = sorted((self._open_ids, scheduled), key=len)
        for req_id in [req_id for req_id in few if req_id in many]:
            request = self.requests.get(req_id)
            if request is None or request.is_finished() or request.num_stale_output_tokens > 0:
                continue
            index = model_runner_output.req_id_to_index.get(req_id)
            if index is not None and sampled and sampled[index]:
                sampled[index] = []
                finished_prefix.append(request)
            self._report_progress(self.streams[req_id], request)
        return finished_prefix

    def _report_progress(self, session: StreamSession, request: Any) -> None:
        if len(self.counters.progress) < MAX_PROGRESS_ENTRIES:
            computed_tokens = min(request.num_computed_tokens, request.num_tokens)
            self.counters.progress[session.req_id] = (computed_tokens, session.invalidated_tokens)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> tuple[dict[str, Any] | None, Any]:
        kv_params, ec_params = super()._free_request(request, *args, **kwargs)
        req_id = request.request_id
        session = self.streams.pop(req_id, None)
        self._open_ids.discard(req_id)
        self._pending_ids.discard(req_id)
        self._lost_tokens.pop(req_id, None)
        self._spared_up_to_tokens.pop(req_id, None)
        # vLLM's connector hook has done so, but for one that ends with its blocks still awaited.
        self.host_pool.drop(req_id)
        self.counters.progress.pop(req_id, None)
        self.on_gone(req_id)
        self.tenants.discard(req_id)
        if session is not None:
            kv_params = {**(kv_params or {}), STATS_KEY: session.report()}
        return kv_params, ec_params

    def has_finished_requests(self) -> bool:
        # A failure's output leaves with the next step, so there must be one.
        return bool(self._failures) or super().has_finished_requests()

    # ---------------------------------------------------------------- preemption
    def preempt(self, request: Any, timestamp_s: float) -> None:
        """Take all KV blocks of a running, parked or readmitted request; it gets them back, or recomputes, later."""
        if request.status == RequestStatus.RUNNING:
            self.upstream.preempt_running(request, timestamp_s)
            return
        self._note_preemption(request)
        self.upstream.preempt_waiting(request)
        self.on_changed(request)

    def _preempt_request(self, request: Any, timestamp: float, drop_stale_output: bool = False) -> None:
        """vLLM's own preemption of a running request, whoever asks for it."""
        self._note_preemption(request)
        is_open = request.request_id in self._open_ids
        super()._preempt_request(request, timestamp, drop_stale_output or is_open)
        if is_open:
            self.upstream.restart_as_new(request)
        self.on_changed(request)

    def kept_tokens(self, req_id: str) -> int:
        """Tokens at its beginning that the prefix cache would give back after a preemption, because others use them."""
        return int(self.upstream.shared_prefix_blocks(req_id) * self.block_size)

    def _note_preemption(self, request: Any) -> None:
        """To be called while the request still has its blocks: its tokens may go to the host pool."""
        req_id = request.request_id
        computed_tokens = min(request.num_computed_tokens, request.num_tokens)
        kept_tokens = min(self.kept_tokens(req_id), computed_tokens)
        how = self._swap_out(request, computed_tokens, kept_tokens)
        cause = "policy" if req_id in self._slot_victims else "memory"
        self.counters.preempted(how, cause, self.preemptions.cost_ms(how, computed_tokens, kept_tokens))
        self._lost_tokens[req_id] = computed_tokens
        self._spared_up_to_tokens.pop(req_id, None)
        session = self.streams.get(req_id)
        if session is not None:
            session.preemptions += 1
            session.computed_once_tokens = max(session.computed_once_tokens, computed_tokens)

    def _swap_out(self, request: Any, computed_tokens: int, kept_tokens: int) -> Preemption:
        # Blocks that a step in flight may still write to are not complete yet.
        if not (
            self._may_swap and self.upstream.can_give_up_blocks(request) and self.upstream.can_be_restored(request)
        ):
            return Preemption.RECOMPUTE
        if self.preemptions.choose(computed_tokens, kept_tokens) is Preemption.RECOMPUTE:
            return Preemption.RECOMPUTE
        block_ids = [block.block_id for block in self.upstream.blocks(request.request_id)]
        stored = self.host_pool.store(request.request_id, computed_tokens, block_ids)
        return Preemption.SWAP if stored else Preemption.RECOMPUTE

    def note_admissions(self, starts: Iterable[tuple[str, int]]) -> None:
        """Count as recomputed what a preemption took and nothing gave back. What runs again is spared until it has got
        further than it was."""
        if not self._lost_tokens:
            return
        for req_id, computed_tokens in starts:
            lost_tokens = self._lost_tokens.pop(req_id, None)
            if lost_tokens is None:
                continue
            self._spared_up_to_tokens[req_id] = lost_tokens
            again_tokens = max(lost_tokens - computed_tokens, 0)
            self.counters.recomputed_tokens += again_tokens
            session = self.streams.get(req_id)
            if session is not None:
                session.recomputed_tokens += again_tokens

    def _note_restored(self, req_id: str, tokens: int) -> None:
        session = self.streams.get(req_id)
        if session is not None:
            session.swapped_tokens += tokens

    def _note_copies(self, copies: Copies) -> None:
        self.counters.swapped_bytes[Direction.OUT] += len(copies.out) * self._block_bytes
        self.counters.swapped_bytes[Direction.IN] += len(copies.into) * self._block_bytes

    def _note_timed_copy(self, copy: TimedCopy) -> None:
        figures = self.preemptions.figures
        observe = figures.observe_swap_out if copy.direction is Direction.OUT else figures.observe_swap_in
        observe(copy.blocks * self.block_size, copy.seconds * 1e3)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        if reset_running_requests:
            # The weights have changed, and all KV with them.
            self.host_pool.drop_all()
        return bool(super().reset_prefix_cache(reset_running_requests, reset_connector))
