"""Two-phase scheduling around vLLM's `schedule()`: plan on a read-only snapshot, then carry it out.

Phase 2 preempts the victims, shows vLLM's own loop the granted requests only, and caps each at its grant. So vLLM
executes the plan with its own code, and everything it does per request stays as it is.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from vllm.v1.request import RequestStatus

from stream2llm_pod.engine.gating import GatedQueue
from stream2llm_pod.engine.statistics import joined
from stream2llm_pod.engine.swap.connector import own_connector
from stream2llm_pod.engine.swap.metadata import copies_in
from stream2llm_pod.engine.timing import Span, StepTimes, substantial
from stream2llm_pod.scheduling.planner import Plan, TenantQueue, plan_tenants
from stream2llm_pod.scheduling.policies import Default, make_policy
from stream2llm_pod.scheduling.ranking import RankIndex
from stream2llm_pod.scheduling.tenants import Turns
from stream2llm_pod.scheduling.victims import cheapest_among_equals
from stream2llm_pod.scheduling.views import Candidate, Limits, RankKey, StreamView, Victim

if TYPE_CHECKING:
    from stream2llm_pod.engine.streaming import StreamingMixin as Base
else:
    Base = object

logger = logging.getLogger(__name__)

EMPTY_STEPS_BEFORE_FALLBACK = 3
OBSERVE_EVERY_S = 0.25


class Lane:
    """The ranks of one tenant's requests. Each is in one of `homes`."""

    def __init__(self) -> None:
        self.running = RankIndex()
        self.waiting = RankIndex()
        self.parked = RankIndex()
        self.homes = (self.running, self.waiting, self.parked)
        self.repeating = RankIndex()
        """Those in one of the first two that hold memory and only compute again what a preemption took."""
        self._home_of: dict[str, RankIndex] = {}

    def __len__(self) -> int:
        return len(self._home_of)

    def put(self, req_id: str, key: RankKey, home: RankIndex, *, repeats: bool) -> None:
        """Move it to `home`, one of `homes`, with its rank."""
        before = self._home_of.get(req_id)
        if before is not home:
            if before is not None:
                before.discard(req_id)
            self._home_of[req_id] = home
        home.put(req_id, key)
        if repeats:
            self.repeating.put(req_id, key)
        else:
            self.repeating.discard(req_id)

    def discard(self, req_id: str) -> None:
        home = self._home_of.pop(req_id, None)
        if home is not None:
            home.discard(req_id)
        self.repeating.discard(req_id)


class TwoPhaseMixin(Base):
    """Put it before `StreamingMixin` in the bases."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.upstream.take_over_queues(GatedQueue)
        self.policy_name = self.settings.policy
        self.ranking_policy = make_policy(self.settings.policy, self.settings.max_wait_s)
        self._upstream_order = self.policy_name == Default.name
        if not self._upstream_order:
            self.upstream.admit_by_first_chunk()
        self._lanes: dict[str, Lane] = {}
        self._turns = Turns()
        self._changed: set[str] = set()
        self._ageing: list[tuple[float, str]] = []
        self._due_s: dict[str, float] = {}
        self._runnable_since_s: dict[str, float] = {}
        self._admitted_s: dict[str, float] = {}
        self._outgrown: list[Any] = []
        self._grants: dict[str, int] | None = None
        self._empty_steps = 0
        self._asleep = False
        self._step_times = StepTimes()
        self._observed_s = float("-inf")
        self.last_plan: Plan | None = None

    # ---------------------------------------------------------------- keeping the ranks
    def on_changed(self, request: Any) -> None:
        self._changed.add(request.request_id)
        self._asleep = False

    def on_gone(self, req_id: str) -> None:
        tenant = self.tenants.of(req_id)
        lane = self._lanes.get(tenant)
        if lane is not None:
            lane.discard(req_id)
            if not lane:
                del self._lanes[tenant]
                self._turns.keep(self._lanes)
        self._changed.discard(req_id)
        self._due_s.pop(req_id, None)
        self._runnable_since_s.pop(req_id, None)
        self._admitted_s.pop(req_id, None)
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
            due_s, req_id = heapq.heappop(self._ageing)
            if self._due_s.get(req_id) == due_s:
                self._changed.add(req_id)
        if not self._changed:
            return
        changed, self._changed = self._changed, set()
        for req_id in changed:
            request = self.requests.get(req_id)
            if request is None or request.is_finished():
                self.on_gone(req_id)
            else:
                self._rank(req_id, request, now_s)

    def _rank(self, req_id: str, request: Any, now_s: float) -> None:
        tenant = self.tenants.of(req_id)
        lane = self._lanes.get(tenant)
        if lane is None:
            lane = self._lanes[tenant] = Lane()
        home = lane.waiting
        if request.status == RequestStatus.RUNNING:
            home = lane.running
        elif request.status == RequestStatus.WAITING_FOR_STREAMING_REQ:
            home = lane.parked
        repeats = home is not lane.parked and not self._has_new_work(request)
        if home is lane.parked or repeats:
            self._runnable_since_s.pop(req_id, None)
        else:
            self._runnable_since_s.setdefault(req_id, now_s)
        view = self._view(request, now_s)
        key = self.ranking_policy.key(view, now_s)
        holds_memory = home is lane.running or request.num_computed_tokens > 0
        lane.put(req_id, key, home, repeats=repeats and holds_memory)
        due_s = self.ranking_policy.changes_at_s(view, now_s) if req_id in self._runnable_since_s else None
        if due_s is not None and self._due_s.get(req_id) != due_s:
            self._due_s[req_id] = due_s
            heapq.heappush(self._ageing, (due_s, req_id))

    def _has_new_work(self, request: Any) -> bool:
        """It is whole, or has tokens that were never computed."""
        session = self.streams.get(request.request_id)
        return session is None or not session.open or request.num_tokens > session.computed_once_tokens

    # ---------------------------------------------------------------- the snapshot, made lazily
    def _candidates(self, index: RankIndex, now_s: float, *, holds_slot: bool) -> Iterator[Candidate]:
        for key in index:
            req_id = str(key[-1])
            request = self.requests[req_id]
            todo_tokens = self.upstream.todo_tokens(request)
            if todo_tokens <= 0:
                continue
            if request.num_tokens > self.limit_tokens:
                self._outgrown.append(request)
                continue
            yield self._candidate(req_id, request, key, todo_tokens, holds_slot, now_s)

    def _candidate(
        self, req_id: str, request: Any, key: RankKey, todo_tokens: int, holds_slot: bool, now_s: float
    ) -> Candidate:
        session = self.streams.get(req_id)
        complete = session is None or not session.open
        restored_tokens = shared_blocks = 0
        on_host = False
        if not holds_slot and request.num_computed_tokens == 0:
            restored_tokens, shared_blocks = self.upstream.cached_prefix(request)
            on_host_tokens = self.host_pool.restorable_tokens(req_id, request.num_tokens)
            restored_tokens = max(restored_tokens, on_host_tokens)
            # One token is always left to compute.
            on_host = 0 < on_host_tokens == request.num_tokens - 1
        return Candidate(
            req_id,
            key,
            complete,
            holds_slot,
            todo_tokens,
            request.num_computed_tokens,
            len(self.upstream.blocks(req_id)),
            restored_tokens,
            shared_blocks,
            complete or self._has_new_work(request),
            now_s - self._runnable_since_s.get(req_id, now_s) >= self.settings.max_wait_s,
            complete and request.num_computed_tokens < request.num_prompt_tokens,
            on_host,
        )

    def _victims(self, lanes: Iterable[Lane], idle: bool, now_s: float) -> Iterator[Victim]:
        """Holders of KV blocks, lowest rank first."""
        indexes: list[Iterable[RankKey]] = []
        for lane in lanes:
            if idle:
                indexes += (reversed(lane.parked), reversed(lane.repeating))
            else:
                holding = (request.request_id for request in self.upstream.holding_waiting())
                keys = [lane.waiting.key(req_id) for req_id in holding if req_id in lane.waiting]
                indexes += (reversed(lane.running), sorted(keys, reverse=True))
        residency_s = max(self.ranking_policy.min_residency_s, self.settings.min_residency_s)
        for key in heapq.merge(*indexes, reverse=True):
            req_id = str(key[-1])
            request = self.requests[req_id]
            repeats = self._repeats(req_id)
            if repeats and not idle:
                continue
            parked = idle and not repeats
            if not self.upstream.blocks(req_id) or not self.upstream.can_give_up_blocks(request):
                continue
            yield Victim(
                req_id,
                key,
                parked,
                self.upstream.freeable_blocks(req_id),
                parked or request.status == RequestStatus.RUNNING,
                not parked
                and (now_s - self._admitted_s.get(req_id, -residency_s) < residency_s or self._is_spared(request)),
                self.ranking_policy.level(key),
                self.preemptions.price(min(request.num_computed_tokens, request.num_tokens), self.kept_tokens(req_id)),
                repeats,
            )

    def _repeats(self, req_id: str) -> bool:
        lane = self._lanes.get(self.tenants.of(req_id))
        return lane is not None and req_id in lane.repeating

    def _held(self, lane: Lane) -> tuple[int, int]:
        """KV blocks and run slots of a tenant."""
        blocks = sum(len(self.upstream.blocks(str(key[-1]))) for index in lane.homes for key in index)
        return blocks, len(lane.running) + len(lane.parked)

    def _is_spared(self, request: Any) -> bool:
        """It was preempted, runs again, and has not got further than it was. One that has parked did all it could."""
        up_to_tokens = self._spared_up_to_tokens.get(request.request_id)
        if up_to_tokens is None:
            return False
        if request.num_computed_tokens > up_to_tokens:
            del self._spared_up_to_tokens[request.request_id]
            return False
        return True

    # ---------------------------------------------------------------- one step
    def schedule(self, throttle_prefills: bool = False) -> Any:
        started = time.perf_counter()
        now_s = self.clock()
        plan: Plan | None = None
        hidden: list[Any] = []
        expose_all = self.upstream.paused()
        # Outside a step vLLM preempts because the weights change, and then the KV is worthless.
        self._may_swap = True
        try:
            self.apply_pending()
            self._changed.update(request.request_id for request in self.upstream.promote_blocked())
            self._rerank(now_s)
            if self._upstream_order and len(self._lanes) < 2:
                expose_all = True
            if self._empty_steps >= EMPTY_STEPS_BEFORE_FALLBACK:
                self._empty_steps = 0
                self.counters.fallback_steps += 1
                expose_all = True
            elif expose_all:
                pass
            elif self._nothing_to_decide():
                self.counters.fast_steps += 1
            else:
                plan = self._plan(now_s)
                hidden = self._carry_out(plan)
                self.counters.planned(time.perf_counter() - started)
        except Exception:
            # An exception here would end the engine for everyone; vLLM's own order always works.
            logger.exception("planning failed; this step runs in vLLM's own order")
            self.counters.internal_errors += 1
            plan, expose_all = None, True
        if expose_all:
            self._expose_all()
        self._grants = None if plan is None else plan.grants
        try:
            output = super().schedule(throttle_prefills)
        finally:
            self._grants = None
            if hidden:
                self.running.extend(hidden)
            self.waiting.expose(())
            self.kv_holding_waiting.expose(())
        self._after(plan, output, now_s)
        self._may_swap = False
        return output

    def _nothing_to_decide(self) -> bool:
        """Everything that runs decodes, nobody else could join, and memory suffices."""
        running = len(self.running)
        return (
            all(
                not lane.waiting or (self.upstream.free_slots() <= 0 and not self.upstream.parked_slots())
                for lane in self._lanes.values()
            )
            and not self.upstream.anything_prefills()
            and running <= self.max_num_scheduled_tokens
            and running * (1 + self.num_lookahead_tokens) <= self.upstream.free_blocks()
        )

    def _queue(self, tenant: str, lane: Lane, prefilling: Counter[str], now_s: float) -> TenantQueue:
        return TenantQueue(
            tenant,
            self._candidates(lane.running, now_s, holds_slot=True),
            self._candidates(lane.waiting, now_s, holds_slot=False),
            lambda idle: self._victims((lane,), idle, now_s),
            self.tenants.weights.get(tenant, 1.0),
            self._turns.time(tenant),
            len(lane.running) - prefilling[tenant],
            partial(self._held, lane),
        )

    def _plan(self, now_s: float) -> Plan:
        limits = Limits(
            self.max_num_scheduled_tokens,
            self.upstream.free_blocks(),
            self.block_size,
            self.upstream.free_slots(),
            self.upstream.parked_slots(),
            self.num_lookahead_tokens,
            self.upstream.watermark_blocks(),
            # Not twice in a row, or many short prompts would leave open ones nothing.
            self.ranking_policy.finishes_alone and not (self.last_plan and self.last_plan.held_back),
        )
        self._outgrown.clear()
        prefilling: Counter[str] = Counter()
        if len(self._lanes) > 1:
            prefilling.update(self.tenants.of(request.request_id) for request in self.upstream.prefilling())
        self.last_plan = plan_tenants(
            [self._queue(tenant, lane, prefilling, now_s) for tenant, lane in self._lanes.items()],
            limits,
            # What is in flight may end a request or free a block; nobody is pushed out for want of patience.
            may_resort=lambda: not self.upstream.anything_in_flight(),
        )
        for request in self._outgrown:
            self.end_if_outgrown(request)
        return self.last_plan

    def _carry_out(self, plan: Plan) -> list[Any]:
        """Preempt, and expose what was granted; returns the running requests that sit this step out."""
        if plan.victims:
            timestamp_s = time.monotonic()
            self._slot_victims = plan.slot_victims
            for req_id in plan.victims:
                request = self.requests.get(req_id)
                if request is not None:
                    self.preempt(request, timestamp_s)
            self._slot_victims = set()
        grants = plan.grants
        fresh: list[Any] = []
        holding: list[Any] = []
        granted_running = 0
        for req_id in grants:
            request = self.requests[req_id]
            if request.status == RequestStatus.RUNNING:
                granted_running += 1
            else:
                (holding if request.num_computed_tokens > 0 else fresh).append(request)
        self.waiting.expose(fresh)
        self.kv_holding_waiting.expose(holding)
        if granted_running == len(self.running):
            return []
        hidden = [request for request in self.running if request.request_id not in grants]
        self.running[:] = [request for request in self.running if request.request_id in grants]
        return hidden

    def _expose_all(self) -> None:
        self.waiting.expose(None)
        self.kv_holding_waiting.expose(None)

    def _reserve_prefill_lookahead(self, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
        """vLLM's hook that may shorten a request's share of the step: the grant is the cap."""
        tokens: int = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        if self._grants is None:
            return tokens
        return min(tokens, self._grants.get(request.request_id, 0))

    def _after(self, plan: Plan | None, output: Any, now_s: float) -> None:
        scheduled = output.num_scheduled_tokens
        starts = [(new.req_id, new.num_computed_tokens) for new in output.scheduled_new_reqs]
        cached = output.scheduled_cached_reqs
        if cached.resumed_req_ids:
            starts += [
                (req_id, cached.num_computed_tokens[i])
                for i, req_id in enumerate(cached.req_ids)
                if req_id in cached.resumed_req_ids
            ]
        if starts:
            self.note_admissions(starts)
            for req_id, _ in starts:
                self._changed.add(req_id)
                self._admitted_s[req_id] = now_s
        spans: list[Span] = []
        if output.total_num_scheduled_tokens > len(scheduled) or starts:
            spans = self._count_prefill(scheduled)
        # A step that copies takes longer than its tokens.
        timed = (
            bool(spans)
            and substantial(spans, output.total_num_scheduled_tokens)
            and not copies_in(output.kv_connector_metadata)
        )
        self._step_times.left(output, spans if timed else (), self.clock())
        if output.total_num_scheduled_tokens:
            self._empty_steps = 0
        elif plan is not None and plan.grants:
            self._empty_steps += 1
            self.counters.empty_plan_steps += 1
        elif (
            any(lane.waiting or lane.repeating for lane in self._lanes.values())
            and not self._changed
            and not self.upstream.anything_in_flight()
        ):
            # What this very step preempted is ranked by the next one only, and must not be slept over.
            self._relieve_or_sleep()

    def _count_prefill(self, scheduled: dict[str, int]) -> list[Span]:
        """Called when some request got more than a decode's token; those have moved, so their ranks are stale. Returns
        the prompts' tokens in the step."""
        spans = []
        charged: dict[str, int] = {}
        for req_id, tokens in scheduled.items():
            request = self.requests[req_id]
            before_tokens = request.num_computed_tokens - tokens
            if before_tokens < request.num_prompt_tokens:
                after_tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
                self.counters.prefill_tokens += after_tokens - before_tokens
                self._changed.add(req_id)
                spans.append((before_tokens, after_tokens))
                tenant = self.tenants.of(req_id)
                charged[tenant] = charged.get(tenant, 0) + after_tokens - before_tokens
        self._turns.charge(charged, self.tenants.weights)
        return spans

    def _relieve_or_sleep(self) -> None:
        """Nothing ran although requests wait, and nothing is under way that could change that."""
        in_need = [
            request
            for request in (self.requests[str(key[-1])] for lane in self._lanes.values() for key in lane.waiting)
            if self._has_new_work(request) and self.upstream.todo_tokens(request) > 0
        ]
        if in_need and self._upstream_order:
            # vLLM's own order never takes memory from what does not run, and would stand still for ever.
            ended = [self.end_if_outgrown(request) for request in in_need]
            if any(ended):
                return
            lanes = self._lanes.values()
            victims = chain(self._victims(lanes, True, 0.0), self._victims(lanes, False, 0.0))
            victim = next(cheapest_among_equals(victims), None)
            if victim is not None:
                self.preempt(self.requests[victim.req_id], time.monotonic())
                return
        repeats = (self._repeats(request.request_id) for request in self.running)
        if not in_need and all(repeats) and not self.deferred_elsewhere():
            # Open streams only, whose known prompts were computed before and cannot have memory now: the engine may
            # block until something happens.
            self._asleep = True

    def deferred_elsewhere(self) -> bool:
        """Whether a request waits for a grammar or a KV transfer."""
        return bool(len(self.deferred_waiting) > self.num_waiting_for_streaming_input)

    # ---------------------------------------------------------------- what the engine asks
    def get_num_unfinished_requests(self) -> int:
        return 0 if self._asleep else int(super().get_num_unfinished_requests())

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        now_s = time.monotonic()
        if now_s - self._observed_s >= OBSERVE_EVERY_S or not self.has_unfinished_requests():
            self._observed_s = now_s
            self._observe()
        return super().make_stats(*args, **kwargs)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
        timed = self._step_times.ended(scheduler_output, self.clock())
        if timed is not None:
            self.preemptions.figures.observe_prefill(*timed)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self.log_stats and self._open_ids and not self.has_unfinished_requests():
            self._send_last_figures(outputs)
        return outputs

    def _send_last_figures(self, outputs: dict[int, Any]) -> None:
        """The last stream has just parked and the engine goes to sleep: what is not reported now waits for long."""
        connector = own_connector(self.connector)
        statistics = next(
            (of_client.scheduler_stats for of_client in outputs.values() if of_client.scheduler_stats), None
        )
        if connector is None or statistics is None:
            return
        self._observe()
        late = connector.get_kv_connector_stats()
        if late is None:
            return
        present = statistics.kv_connector_stats or {}
        if connector is self.connector:
            statistics.kv_connector_stats = joined(present, late.data)
        else:
            name = type(connector).__name__
            statistics.kv_connector_stats = {**present, name: joined(present.get(name, {}), late.data)}

    def _observe(self) -> None:
        counters = self.counters
        counters.open_streams = len(self._open_ids)
        counters.parked_streams = self.num_waiting_for_streaming_input
        if self.costs is not None:
            counters.corrections = self.costs.corrections
        counters.kv_cache_usage_ratio = self.get_kv_cache_usage()
        backlog = [
            (computed_tokens, request.num_prompt_tokens)
            for req_id, request in self.requests.items()
            # What lies in the host pool need not be computed.
            if (computed_tokens := max(request.num_computed_tokens, self.host_pool.tokens(req_id)))
            < request.num_prompt_tokens
        ]
        counters.prefill_backlog_tokens = sum(end - start for start, end in backlog)
        counters.prefill_backlog_seconds = self.preemptions.figures.prefill_ms(backlog) / 1e3
