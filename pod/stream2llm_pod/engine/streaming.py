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
from stream2llm_pod.engine.counting import Counters
from stream2llm_pod.engine.protocol import Op, OpKind, read_op
from stream2llm_pod.engine.refusing import unsupported_features
from stream2llm_pod.engine.sessions import Prompt, StreamSession
from stream2llm_pod.scheduling.prefix import common_prefix_tokens, to_tokens

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler as Base
else:
    Base = object

logger = logging.getLogger(__name__)

STATS_KEY = "stream2llm"
"""Where a finished stream's report rides in `kv_transfer_params`."""


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
        self.counters = Counters()
        self.clock = time.monotonic
        self._failures: list[tuple[int, EngineCoreOutput]] = []
        if hasattr(self.connector, "report_from"):
            self.connector.report_from(self.counters)

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
        if op is None:
            if request.request_id in self.streams:
                self.counters.ignored_operations += 1
                return
            super().add_request(request)
            self._accept(request)
            return
        existing = self.requests.get(request.request_id)
        if existing is None:
            if op.kind is OpKind.OPEN:
                self._open(request, op)
            else:
                # The chunk raced with the stream's end.
                self.counters.ignored_operations += 1
            return
        session = self.streams.get(request.request_id)
        if session is None or not session.open or op.kind is OpKind.OPEN or existing.is_finished():
            self.counters.ignored_operations += 1
        elif existing.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            session.pending.append((request, op))
        else:
            self._apply(existing, session, request, op)

    def _open(self, request: Any, op: Op) -> None:
        now_s = self.clock()
        session = StreamSession(
            request.request_id, Prompt(request.prompt_token_ids), request.max_tokens, now_s, now_s, open=not op.last
        )
        self.streams[request.request_id] = session
        request.resumable = False
        if session.open:
            request.max_tokens = 1
        super().add_request(request)
        self._accept(request)

    def _accept(self, request: Any) -> None:
        if not self._fail_if_too_long(request):
            self.on_changed(request)

    def apply_pending(self) -> None:
        """Apply what arrived while a KV transfer was under way, for the streams whose transfer has ended."""
        for session in [s for s in self.streams.values() if s.pending]:
            request = self.requests.get(session.req_id)
            while session.pending and request is not None and not request.is_finished():
                if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS or not session.open:
                    break
                self._apply(request, session, *session.pending.pop(0))

    def _apply(self, request: Any, session: StreamSession, incoming: Any, op: Op) -> None:
        session.last_chunk_s = self.clock()
        known_tokens = request.num_tokens
        computed_tokens = min(request.num_computed_tokens, known_tokens)
        shared_tokens = known_tokens
        if op.kind is OpKind.UPDATE:
            new_tokens = to_tokens(incoming.prompt_token_ids)
            shared_tokens = common_prefix_tokens(session.prompt.tokens, new_tokens)
            self.upstream.replace_prompt(request, list(incoming.prompt_token_ids), shared_tokens, incoming.block_hashes)
            session.prompt.replace(new_tokens)
        elif not op.empty:
            chunk = list(incoming.prompt_token_ids)
            self.upstream.extend_prompt(request, chunk)
            session.prompt.append(chunk)
        valid_tokens = min(shared_tokens, computed_tokens)
        if op.last or op.kind is OpKind.FINISH:
            session.open = False
            request.max_tokens = session.max_tokens
            session.prefilled_before_finish_tokens = valid_tokens
        if self._fail_if_too_long(request):
            return
        unchanged = request.num_tokens == known_tokens == shared_tokens
        if session.open and unchanged:
            return
        # One token at least is left to compute, or nothing would ever be sampled.
        kept_tokens = self.upstream.truncate(request, min(valid_tokens, request.num_tokens - 1))
        if shared_tokens < computed_tokens:
            session.invalidated_tokens += computed_tokens - kept_tokens
            self.counters.invalidated_tokens += computed_tokens - kept_tokens
        self.upstream.readmit(request, kept_tokens)
        self._report_progress(session, request)
        self.on_changed(request)

    # ---------------------------------------------------------------- prompts that cannot fit
    def _fail_if_too_long(self, request: Any) -> bool:
        block_tokens = self.block_size
        limit_tokens = min(self.max_model_len - 1, self.upstream.usable_blocks() * block_tokens)
        if request.num_tokens <= limit_tokens:
            return False
        self.fail(request, f"prompt of {request.num_tokens} tokens, limit {limit_tokens}")
        return True

    def fail(self, request: Any, why: str) -> None:
        """End one request with an error; vLLM would keep it for ever."""
        logger.warning("request %s ended: %s", request.request_id, why)
        self.counters.failed_requests += 1
        output = EngineCoreOutput(
            request_id=request.request_id, new_token_ids=[], finish_reason=FinishReason.ERROR, stop_reason=why
        )
        self._failures.append((request.client_index, output))
        self.finish_requests(request.request_id, RequestStatus.FINISHED_ERROR)

    # ---------------------------------------------------------------- after a step
    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
        finished_prefix = []
        sampled = model_runner_output.sampled_token_ids
        for req_id in scheduler_output.num_scheduled_tokens if self.streams else ():
            session = self.streams.get(req_id)
            if session is None or not session.open:
                continue
            request = self.requests.get(req_id)
            if request is None or request.is_finished() or request.num_stale_output_tokens > 0:
                continue
            index = model_runner_output.req_id_to_index.get(req_id)
            if index is not None and sampled and sampled[index]:
                # The known prompt is computed but not whole: what was sampled after it means nothing.
                sampled[index] = []
                finished_prefix.append(request)
            self._report_progress(session, request)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for request in finished_prefix:
            if not request.is_finished() and request.status == RequestStatus.RUNNING:
                self.upstream.park(request)
                self.on_changed(request)
        for client_index, output in self._failures:
            if client_index not in outputs:
                outputs[client_index] = EngineCoreOutputs()
            # A new list: the default one may be shared.
            outputs[client_index].outputs = [*outputs[client_index].outputs, output]
        self._failures.clear()
        return outputs

    def _report_progress(self, session: StreamSession, request: Any) -> None:
        computed_tokens = min(request.num_computed_tokens, request.num_tokens)
        self.counters.progress[session.req_id] = (computed_tokens, session.invalidated_tokens)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> tuple[dict[str, Any] | None, Any]:
        kv_params, ec_params = super()._free_request(request, *args, **kwargs)
        session = self.streams.pop(request.request_id, None)
        self.counters.progress.pop(request.request_id, None)
        self.on_gone(request.request_id)
        if session is not None:
            kv_params = {**(kv_params or {}), STATS_KEY: session.report()}
        return kv_params, ec_params

    def has_finished_requests(self) -> bool:
        # A failure's output leaves with the next step, so there must be one.
        return bool(self._failures) or super().has_finished_requests()

    def preempt(self, request: Any, timestamp_s: float, *, for_memory: bool = True) -> None:
        """Take all KV blocks of a running, parked or readmitted request; it recomputes later."""
        session = self.streams.get(request.request_id)
        if session is not None:
            session.preemptions += 1
            session.lost_tokens = min(request.num_computed_tokens, request.num_tokens)
        if for_memory:
            self.counters.preemptions_memory += 1
        else:
            self.counters.preemptions_policy += 1
        if request.status == RequestStatus.RUNNING:
            self.upstream.preempt_running(request, timestamp_s)
        else:
            self.upstream.preempt_waiting(request)
        self.on_changed(request)

    def note_admissions(self, starts: Iterable[tuple[str, int]]) -> None:
        """Count as recomputed what a preemption took and the prefix cache did not give back."""
        for req_id, computed_tokens in starts:
            session = self.streams.get(req_id)
            if session is not None and session.lost_tokens:
                again_tokens = max(session.lost_tokens - computed_tokens, 0)
                session.recomputed_tokens += again_tokens
                self.counters.recomputed_tokens += again_tokens
                session.lost_tokens = 0
