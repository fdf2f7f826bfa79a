"""Two-phase scheduling around vLLM's `schedule()`: plan on a read-only snapshot, then carry it out.

Phase 2 preempts the victims, shows vLLM's own loop the granted requests only, and caps each at its grant. So vLLM
executes the plan with its own code, and everything it does per request stays as it is.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vllm.v1.request import RequestStatus

from stream2llm_pod.engine.gating import GatedQueue
from stream2llm_pod.scheduling.planner import Plan, plan_step
from stream2llm_pod.scheduling.policies import Default, make_policy
from stream2llm_pod.scheduling.ranking import RankIndex
from stream2llm_pod.scheduling.views import Candidate, Limits, StreamView, Victim

if TYPE_CHECKING:
    from stream2llm_pod.engine.streaming import StreamingMixin as Base
else:
    Base = object

EMPTY_STEPS_BEFORE_FALLBACK = 3


class TwoPhaseMixin(Base):
    """Put it before `StreamingMixin` in the bases."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # vLLM would admit a prompt only if all of it fits at once; the planner has its own rule.
        self.scheduler_reserve_full_isl = False
        self.waiting = GatedQueue()
        self.kv_holding_waiting = GatedQueue()
        self.policy_name = self.settings.policy
        self.ranking_policy = make_policy(self.settings.policy, self.settings.max_wait_s)
        self._upstream_order = self.policy_name == Default.name
        self._running_index = RankIndex()
        self._waiting_index = RankIndex()
        self._parked_index = RankIndex()
        self._changed: set[str] = set()
        self._ageing: list[tuple[float, str]] = []
        self._due_s: dict[str, float] = {}
        self._runnable_since_s: dict[str, float] = {}
        self._admitted_s: dict[str, float] = {}
        self._grants: dict[str, int] | None = None
        self._empty_steps = 0
        self._asleep = False
        self.last_plan: Plan | None = None

    # ---------------------------------------------------------------- keeping the ranks
    def on_changed(self, request: Any) -> None:
        self._changed.add(request.request_id)
        self._asleep = False

    def on_gone(self, req_id: str) -> None:
        for index in (self._running_index, self._waiting_index, self._parked_index):
            index.discard(req_id)
        self._changed.discard(req_id)
        self._runnable_since_s.pop(req_id, None)
        self._admitted_s.pop(req_id, None)
        self._due_s.pop(req_id, None)
        self._asleep = False

    def _view(self, request: Any, now_s: float) -> StreamView:
        session = self.streams.get(request.request_id)
        first_s = request.arrival_time if session is None else session.first_chunk_s
        return StreamView(
            request.request_id,
            session is not None and session.open,
            first_s,
            first_s if session is None else session.last_chunk_s,
            self._runnable_since_s.get(request.request_id, now_s),
            request.num_prompt_tokens,
            request.num_computed_tokens,
        )

    def _rerank(self, now_s: float) -> None:
        while self._ageing and self._ageing[0][0] <= now_s:
            self._changed.add(heapq.heappop(self._ageing)[1])
        if not self._changed:
            return
        changed, self._changed = self._changed, set()
        for req_id in changed:
            request = self.requests.get(req_id)
            if request is None or request.is_finished():
                self.on_gone(req_id)
                continue
            parked = request.status == RequestStatus.WAITING_FOR_STREAMING_REQ
            if parked:
                self._runnable_since_s.pop(req_id, None)
            else:
                self._runnable_since_s.setdefault(req_id, now_s)
            home = (
                self._running_index
                if request.status == RequestStatus.RUNNING
                else self._parked_index
                if parked
                else self._waiting_index
            )
            for index in (self._running_index, self._waiting_index, self._parked_index):
                if index is not home:
                    index.discard(req_id)
            view = self._view(request, now_s)
            home.put(req_id, self.ranking_policy.key(view, now_s))
            due_s = None if parked else self.ranking_policy.changes_at_s(view, now_s)
            if due_s is not None and self._due_s.get(req_id) != due_s:
                self._due_s[req_id] = due_s
                heapq.heappush(self._ageing, (due_s, req_id))

    # ---------------------------------------------------------------- the snapshot, made lazily
    def _holders(self) -> Iterator[Candidate]:
        for key in list(self._running_index):
            request = self.requests[str(key[-1])]
            todo_tokens = self.upstream.todo_tokens(request)
            if todo_tokens > 0:
                yield self._candidate(request, key, todo_tokens, holds_slot=True)

    def _newcomers(self) -> Iterator[Candidate]:
        for key in self._waiting_index:
            request = self.requests[str(key[-1])]
            todo_tokens = self.upstream.todo_tokens(request)
            if todo_tokens > 0:
                yield self._candidate(request, key, todo_tokens, holds_slot=False)

    def _candidate(self, request: Any, key: Any, todo_tokens: int, *, holds_slot: bool) -> Candidate:
        session = self.streams.get(request.request_id)
        restored_tokens = shared_blocks = 0
        if not holds_slot and request.num_computed_tokens == 0:
            restored_tokens, shared_blocks = self.upstream.cached_prefix(request)
        return Candidate(
            request.request_id,
            key,
            session is None or not session.open,
            holds_slot,
            todo_tokens,
            request.num_computed_tokens,
            len(self.upstream.blocks(request.request_id)),
            restored_tokens,
            shared_blocks,
        )

    def _victims(self, now_s: float) -> Iterator[Victim]:
        residency_s = self.ranking_policy.min_residency_s
        indexes = (self._running_index, self._waiting_index, self._parked_index)
        for key in heapq.merge(*(reversed(index) for index in indexes), reverse=True):
            req_id = str(key[-1])
            request = self.requests[req_id]
            if not self.upstream.blocks(req_id) or not self.upstream.can_give_up_blocks(request):
                continue
            parked = req_id in self._parked_index
            yield Victim(
                req_id,
                key,
                parked,
                self.upstream.freeable_blocks(req_id),
                parked or request.status == RequestStatus.RUNNING,
                not parked and now_s - self._admitted_s.get(req_id, -residency_s) < residency_s,
            )

    # ---------------------------------------------------------------- one step
    def schedule(self, throttle_prefills: bool = False) -> Any:
        self.apply_pending()
        self._promote_blocked()
        started = time.perf_counter()
        now_s = self.clock()
        self._rerank(now_s)
        plan: Plan | None = None
        if self._upstream_order or self._empty_steps >= EMPTY_STEPS_BEFORE_FALLBACK:
            self.counters.fallback_steps += not self._upstream_order
            self._expose_all()
            output = super().schedule(throttle_prefills)
            self._empty_steps = 0
        elif self._only_decodes():
            self.counters.fast_steps += 1
            output = super().schedule(throttle_prefills)
        else:
            plan = self._plan(now_s)
            hidden = self._carry_out(plan)
            self.counters.plan_seconds += time.perf_counter() - started
            self.counters.plans += 1
            self._grants = plan.grants
            try:
                output = super().schedule(throttle_prefills)
            finally:
                self._grants = None
                self.running.extend(hidden)
        self.waiting.expose(())
        self.kv_holding_waiting.expose(())
        self._after(plan, output, now_s)
        return output

    def _promote_blocked(self) -> None:
        """Let vLLM move on what waits for a grammar or a KV transfer; the plan hides such requests from its loop."""
        for request in [r for r in self.deferred_waiting if r.status != RequestStatus.WAITING_FOR_STREAMING_REQ]:
            if self._handle_blocked_waiting_request(request):
                self.deferred_waiting.discard(request)
                self._changed.add(request.request_id)

    def _only_decodes(self) -> bool:
        """Everything that runs decodes, nobody waits with work, and memory suffices: there is nothing to decide."""
        running = len(self.running)
        return (
            not self._waiting_index
            and not self.upstream.anything_prefills()
            and running <= self.max_num_scheduled_tokens
            and running * (1 + self.num_lookahead_tokens) <= self.upstream.free_blocks()
        )

    def _plan(self, now_s: float) -> Plan:
        limits = Limits(
            self.max_num_scheduled_tokens,
            self.upstream.free_blocks(),
            self.block_size,
            min(self.max_num_running_reqs, self.max_num_active_reqs)
            - len(self.running)
            - self.num_waiting_for_streaming_input,
            self.num_lookahead_tokens,
        )
        self.last_plan = plan_step(self._holders(), self._newcomers(), lambda: self._victims(now_s), limits)
        return self.last_plan

    def _carry_out(self, plan: Plan) -> list[Any]:
        """Preempt, and expose what was granted; returns the running requests that sit this step out."""
        timestamp_s = time.monotonic()
        for req_id in plan.victims:
            request = self.requests.get(req_id)
            if request is not None:
                self.preempt(request, timestamp_s)
        shown, hidden = [], []
        for request in self.running:
            (shown if request.request_id in plan.grants else hidden).append(request)
        if plan.victims or (len(shown) > 1 and self.upstream.free_blocks() < len(shown)):
            # vLLM preempts from the tail when it runs short after all.
            order = {req_id: position for position, req_id in enumerate(plan.grants)}
            shown.sort(key=lambda request: order[request.request_id])
        self.running[:] = shown
        fresh, holding = [], []
        for req_id in plan.grants:
            request = self.requests[req_id]
            if request.status != RequestStatus.RUNNING:
                (holding if request.num_computed_tokens > 0 else fresh).append(request)
        self.waiting.expose(fresh)
        self.kv_holding_waiting.expose(holding)
        return hidden

    def _expose_all(self) -> None:
        self.waiting.expose(None)
        self.kv_holding_waiting.expose(None)

    def _reserve_prefill_lookahead(self, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
        """vLLM's hook that may shorten a request's share of the step: the grant is the cap."""
        tokens = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        if self._grants is None:
            return int(tokens)
        return min(int(tokens), self._grants.get(request.request_id, 0))

    def _preempt_request(self, request: Any, timestamp: float, drop_stale_output: bool = False) -> None:
        super()._preempt_request(request, timestamp, drop_stale_output)
        self.on_changed(request)

    def _after(self, plan: Plan | None, output: Any, now_s: float) -> None:
        scheduled = output.num_scheduled_tokens
        self._changed.update(self.upstream.prefilling_ids())
        starts = [(new.req_id, new.num_computed_tokens) for new in output.scheduled_new_reqs]
        if output.scheduled_cached_reqs.resumed_req_ids:
            cached = output.scheduled_cached_reqs
            starts += [
                (req_id, cached.num_computed_tokens[i])
                for i, req_id in enumerate(cached.req_ids)
                if req_id in cached.resumed_req_ids
            ]
        self.note_admissions(starts)
        for req_id, _ in starts:
            self._changed.add(req_id)
            self._admitted_s[req_id] = now_s
        if output.total_num_scheduled_tokens:
            self._empty_steps = 0
            if output.total_num_scheduled_tokens > len(scheduled):
                self.counters.prefill_tokens += sum(n for n in scheduled.values() if n > 1)
            # Whoever just computed its last prompt token has left the prefilling set, and ranks differently now.
            if plan is not None:
                self._changed.update(req_id for req_id, tokens in plan.grants.items() if tokens > 1)
            return
        if plan is not None and plan.grants:
            self._empty_steps += 1
            self.counters.empty_plan_steps += 1
        elif self._waiting_index or self._changed:
            self._relieve_or_sleep(plan, now_s)

    def _relieve_or_sleep(self, plan: Plan | None, now_s: float) -> None:
        """Nothing ran although requests wait."""
        self._rerank(now_s)
        waiting = [self.requests[str(key[-1])] for key in self._waiting_index]
        blocked_on_us = any(
            (session := self.streams.get(request.request_id)) is None or not session.open for request in waiting
        )
        if plan is None:
            # vLLM's own order never takes memory from parked streams, and would stand still for ever.
            parked = [key for key in self._parked_index if self.upstream.blocks(str(key[-1]))]
            if parked and waiting:
                self.preempt(self.requests[str(parked[0][-1])], time.monotonic())
                return
        if not blocked_on_us and not self.running:
            # Only open streams are left, and none can have memory before something happens: let the engine block.
            self._asleep = True

    # ---------------------------------------------------------------- what the engine asks
    def get_num_unfinished_requests(self) -> int:
        unfinished = int(super().get_num_unfinished_requests())
        return 0 if self._asleep else unfinished

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        self._observe()
        return super().make_stats(*args, **kwargs)

    def _observe(self) -> None:
        counters = self.counters
        counters.open_streams = sum(session.open for session in self.streams.values())
        counters.parked_streams = self.num_waiting_for_streaming_input
        counters.kv_cache_usage_ratio = self.get_kv_cache_usage()
        counters.prefill_backlog_tokens = sum(
            max(request.num_prompt_tokens - request.num_computed_tokens, 0) for request in self.requests.values()
        )
