"""What must hold of a scheduler after every step, and once everything has ended."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from functools import cache
from typing import Any

from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from stream2llm_pod.engine.tenancy import Tenants
from stream2llm_pod.scheduling.ranking import RankIndex


def check_scheduler(scheduler: Any) -> None:
    """AssertionError names what is wrong."""
    check_blocks(scheduler)
    check_queues(scheduler)
    if scheduler.kv_cache_manager.enable_caching:
        check_hashes(scheduler)
    if hasattr(scheduler, "host_pool"):
        check_host_pool(scheduler)


def _tables(scheduler: Any) -> dict[str, list[Any]]:
    tables: dict[str, list[Any]] = scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks
    return tables


def check_blocks(scheduler: Any) -> None:
    """Each block is referenced exactly as often as it is in a table or waits for a step to end, or it is free."""
    pool = scheduler.kv_cache_manager.block_pool
    expected = Counter(block.block_id for blocks in _tables(scheduler).values() for block in blocks)
    expected.update(block.block_id for _, blocks in scheduler.deferred_frees for block in blocks)
    free = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
    assert len(free) == len(set(free)) == pool.get_num_free_blocks()
    in_pool = set(free)
    for block in pool.blocks:
        if not block.is_null:
            assert block.ref_cnt == expected[block.block_id], f"{block}: {expected[block.block_id]} references expected"
            assert (block.block_id in in_pool) == (block.ref_cnt == 0), f"{block}: in the free list and in use"


def check_queues(scheduler: Any) -> None:
    """Every request is in exactly one queue, and vLLM's count of parked streams is right."""
    queued = Counter(
        request.request_id
        for queue in (scheduler.running, scheduler.waiting, scheduler.kv_holding_waiting)
        for request in queue
    )
    queued.update(
        request.request_id
        for request in scheduler.deferred_waiting
        if request not in scheduler.kv_holding_waiting and request not in scheduler.waiting
    )
    assert queued == Counter(scheduler.requests.keys()), f"queues hold {queued}"
    for request in scheduler.running:
        assert request.status == RequestStatus.RUNNING, request
    parked = [r for r in scheduler.requests.values() if r.status == RequestStatus.WAITING_FOR_STREAMING_REQ]
    assert len(parked) == scheduler.num_waiting_for_streaming_input
    for request in scheduler.requests.values():
        if request.status == RequestStatus.WAITING and request.num_computed_tokens > 0:
            blocks = _tables(scheduler)[request.request_id]
            assert request.num_computed_tokens <= len(blocks) * scheduler.block_size, request


def check_hashes(scheduler: Any) -> None:
    """A block's hash is that of the tokens its holder has there, and what counts as cached is in the cache.

    Output tokens do not show if the second breaks: it costs reuse, not correctness.
    """
    manager = scheduler.kv_cache_manager.coordinator.single_type_managers[0]
    for req_id, blocks in _tables(scheduler).items():
        request = scheduler.requests.get(req_id)
        if request is None:
            continue
        for i, block in enumerate(blocks):
            if block.block_hash is not None:
                assert i < len(request.block_hashes), f"{req_id}: block {i} is hashed and not full"
                expected = make_block_hash_with_group_id(request.block_hashes[i], 0)
                assert block.block_hash == expected, f"{req_id}: block {i} has the hash of other tokens"
        counted = manager.num_cached_block.get(req_id, 0)
        assert counted <= len(blocks), f"{req_id}: {counted} blocks count as cached, there are {len(blocks)}"
        for i, block in enumerate(blocks[:counted]):
            assert block.block_hash is not None, f"{req_id}: block {i} counts as cached and is not"


def check_host_pool(scheduler: Any) -> None:
    """Only requests that wait without blocks have anything in host memory, and each slot is held or free."""
    pool = scheduler.host_pool
    assert pool.used_slots + pool.free_slots + pool.returning_slots == pool.total_slots
    for req_id in pool.holders:
        request = scheduler.requests[req_id]
        assert request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED), request
        assert request.num_computed_tokens == 0, request
        assert not _tables(scheduler).get(req_id), f"{req_id} has blocks and swapped tokens"
        assert 0 < pool.tokens(req_id) <= request.num_tokens, f"{req_id}: more was swapped than is known"


def check_ended(engine: Any) -> None:
    """Nothing is left of anything: no block held, no state kept, no alarm counted."""
    scheduler = engine.scheduler
    check_scheduler(scheduler)
    pool = scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
    assert not scheduler.requests
    assert not scheduler.deferred_frees
    if engine.simulated:
        assert engine.core.model_executor.worker.remembered == 0
    counters = getattr(scheduler, "counters", None)
    if counters is not None:
        check_kept(scheduler)
        assert scheduler.host_pool.used_slots == 0
        assert counters.internal_errors == 0
        assert counters.empty_plan_steps == 0
        assert counters.fallback_steps == 0


def check_kept(scheduler: Any) -> None:
    """None of our own collections still names a request."""
    for name, value in vars(scheduler).items():
        # Due times whose request has ended are dropped when they come up.
        if name in _upstream_names() or name in ("_ageing", "settings", "counters"):
            continue
        if isinstance(value, dict | set | list | RankIndex | Tenants):
            assert len(value) == 0, f"{name} still holds {value}"


@cache
def _upstream_names() -> frozenset[str]:
    """The attributes that vLLM's own constructor sets."""
    return frozenset(re.findall(r"self\.(\w+)\b", inspect.getsource(Scheduler.__init__)))
