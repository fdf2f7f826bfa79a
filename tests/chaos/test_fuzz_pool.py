"""Rubbish in ingress, before routers and pods: no process ends, and every valid neighbour is answered in full."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pool import Pool
from rubbish import rubbish
from running import KEYS, Run
from workload import TENANTS, plan_streams

from stream2llm.entries import Cancel, encode

pytestmark = [pytest.mark.e2e, pytest.mark.redis]
FUZZED = [f"fuzz-{number}" for number in (1, 2, 3)] + ["neighbour-0"]
ENTRIES_PER_SECOND = 100
WAIT_S = 120.0


def fuzz(entries: int, tiny_text_model: Path, redis_binary: str, folder: Path) -> None:
    seed = int(os.environ.get("FUZZ_SEED") or random.SystemRandom().randrange(1_000_000))
    seconds = entries / ENTRIES_PER_SECOND
    print(f"\nFUZZ_SEED={seed}, {entries} entries in {seconds:.0f} s")
    chance = random.Random(seed)
    pool = Pool(redis_binary, tiny_text_model, folder, pods=2, routers=2)
    try:
        pool.wait_ready()
        pids = [process.pid for process in (*pool.routers, *pool.pods)]
        run = Run(pool, plan_streams(seed, max(entries // 50, 10), seconds), [])
        neighbours = threading.Thread(target=run.run)
        neighbours.start()
        with pool.redis.client() as client:
            start_s = time.monotonic()
            for number in range(entries):
                entry: Any = rubbish(chance)
                client.xadd(KEYS.ingress(chance.choice(TENANTS)), entry)
                time.sleep(max(start_s + number / ENTRIES_PER_SECOND - time.monotonic(), 0))
            neighbours.join()
            assert run.failures == []
            assert [process.pid for process in (*pool.routers, *pool.pods)] == pids
            assert [process.name for process in (*pool.routers, *pool.pods) if process.gone()] == []
            assert run.wrong() == []
            for tenant in TENANTS:
                for stream in FUZZED:
                    fields: Any = encode(Cancel(stream))
                    client.xadd(KEYS.ingress(tenant), fields)
            give_up_s = time.monotonic() + WAIT_S
            while left := [name for tenant in TENANTS for name in open_streams(client, tenant)]:
                assert time.monotonic() < give_up_s, left
                time.sleep(0.2)
        for process in (*pool.routers, *pool.pods):
            assert "Traceback" not in process.log.read_text(errors="replace"), process.log
    finally:
        pool.close()


def open_streams(client: Any, tenant: str) -> list[str]:
    """What the tenant has open, by the count of it and by the routes."""
    counted = int(client.hget(KEYS.usage(tenant), "streams") or 0)
    routes = [key for key in client.keys(f"{KEYS.prefix}:route:{tenant}:*") if client.hget(key, "state") != b"ended"]
    return [key.decode() for key in routes] + ([f"{tenant}: {counted}"] if counted else [])


@pytest.mark.long
def test_ten_thousand_pieces_of_rubbish(tiny_text_model: Path, redis_binary: str, tmp_path: Path) -> None:
    fuzz(int(os.environ.get("FUZZ_ENTRIES") or 10_000), tiny_text_model, redis_binary, tmp_path)
