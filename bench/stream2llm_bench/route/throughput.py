"""How fast one router empties a backlog, beside the usual consumer group in a tight loop."""

from __future__ import annotations

import json
import time
from typing import Any

import redis
from prometheus_client import CollectorRegistry

from stream2llm.connecting import connect
from stream2llm.keys import DEFAULT_TENANT, PoolKeys
from stream2llm_bench.route.roles import CAPACITY, POD, open_fields, stamped_fields, stream_names
from stream2llm_router.forwarding import Forwarder
from stream2llm_router.metrics import RouterMetrics

GROUP, GROUP_KEY, TARGET_KEY = "bench", "bench:group", "bench:target"
BATCH_ENTRIES = 100


def routed_s(url: str, keys: PoolKeys, run: int, entries: int) -> float:
    """Seconds for a router to move `entries` entries from ingress to the streams' entries and a pod's log."""
    client = connect(url)
    register_pod(client, keys, run)
    streams = stream_names(run)
    ingress = keys.ingress(DEFAULT_TENANT)
    forwarder = Forwarder(client, keys, RouterMetrics(keys.pool, CollectorRegistry()), block_ms=1)
    fill(client, ingress, [open_fields(stream) for stream in streams])
    while client.xlen(ingress):
        forwarder.turn()
    fill(client, ingress, [stamped_fields(streams[i % len(streams)]) for i in range(entries)])
    started_s = time.perf_counter()
    moved = 0
    while moved < entries:
        moved += forwarder.turn()
    elapsed_s = time.perf_counter() - started_s
    forwarder.leases.release_all()
    log = keys.log(POD, f"run{run}")
    if (length := client.xlen(log)) != entries + len(streams):
        raise AssertionError(f"the pod log has {length} entries, not {entries + len(streams)}")
    client.delete(log, *(keys.entries(DEFAULT_TENANT, stream) for stream in streams))
    return elapsed_s


def grouped_s(url: str, run: int, entries: int) -> float:
    """Seconds for XREADGROUP, and per batch one pipeline of the XADDs and one XACK."""
    client = connect(url)
    client.delete(GROUP_KEY, TARGET_KEY)
    streams = stream_names(run)
    fill(client, GROUP_KEY, [stamped_fields(streams[i % len(streams)]) for i in range(entries)])
    client.xgroup_create(GROUP_KEY, GROUP, id="0")
    started_s = time.perf_counter()
    moved = 0
    while moved < entries:
        answer: Any = client.xreadgroup(GROUP, "one", {GROUP_KEY: ">"}, count=BATCH_ENTRIES)
        pipeline = client.pipeline(transaction=False)
        batch = answer[0][1]
        for _, fields in batch:
            pipeline.xadd(TARGET_KEY, fields)
        pipeline.xack(GROUP_KEY, GROUP, *(entry_id for entry_id, _ in batch))
        pipeline.execute()
        moved += len(batch)
    elapsed_s = time.perf_counter() - started_s
    client.delete(GROUP_KEY, TARGET_KEY)
    return elapsed_s


def stream_bytes(url: str, keys: PoolKeys, streams: int, entries: int) -> float:
    """Bytes of Redis memory for one open stream with so many entries of 1 KB, its pod log being empty."""
    client = connect(url)
    register_pod(client, keys, 0)
    forwarder = Forwarder(client, keys, RouterMetrics(keys.pool, CollectorRegistry()), block_ms=1)
    names = [f"memory-{i}" for i in range(streams)]
    before = _used_bytes(client)
    fill(client, keys.ingress(DEFAULT_TENANT), [open_fields(name) for name in names])
    fill(client, keys.ingress(DEFAULT_TENANT), [stamped_fields(name) for name in names for _ in range(entries)])
    while client.xlen(keys.ingress(DEFAULT_TENANT)):
        forwarder.turn()
    client.delete(keys.log(POD, "run0"))
    used = _used_bytes(client) - before
    forwarder.leases.release_all()
    return used / streams


def _used_bytes(client: redis.Redis) -> int:
    info: Any = client.info("memory")
    return int(info["used_memory"])


def register_pod(client: redis.Redis, keys: PoolKeys, run: int | str) -> None:
    """A pod that takes everything and reads nothing."""
    moment: Any = client.time()
    beat = {
        "incarnation": f"run{run}",
        "protocol": 1,
        "state": "ready",
        "capacity": {"max_open_streams": CAPACITY},
        "load": {"open_streams": 0, "backlog_tokens": 0, "kv_usage": 0.0},
        "time_ms": (moment[0] + 3_600) * 1000,
    }
    client.hset(keys.pods, POD, json.dumps(beat))


def fill(client: redis.Redis, key: str, entries: list[dict[str, str]]) -> None:
    """Write a backlog."""
    pipeline = client.pipeline(transaction=False)
    for i, fields in enumerate(entries):
        pipeline.xadd(key, fields)  # type: ignore[arg-type]
        if i % 1_000 == 999:
            pipeline.execute()
    pipeline.execute()
