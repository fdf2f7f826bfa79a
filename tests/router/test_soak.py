"""Ten minutes at a steady load: neither the router's memory nor Redis' grows. Prints the slopes."""

from __future__ import annotations

import os
import time
from typing import Any

import psutil
import pytest
from lone_router import KEYS, TENANT, Pool
from prometheus_client import CollectorRegistry
from slopes import slope

from stream2llm.entries import Append, Finish
from stream2llm_pod.serving import scripts
from stream2llm_router.forwarding import Forwarder
from stream2llm_router.metrics import RouterMetrics

pytestmark = [pytest.mark.redis, pytest.mark.long]
SECONDS = float(os.environ.get("SOAK_SECONDS") or 600)
STREAMS_A_SECOND = 20
RETAIN_MS = 2_000


def end(pool: Pool, stream: str) -> None:
    """As a pod ends a stream."""
    route = pool.route(stream)
    keys = (KEYS.route(TENANT, stream), KEYS.reply(TENANT, stream), KEYS.entries(TENANT, stream), KEYS.usage(TENANT))
    fence = (route["attempt"], route["incarnation"], route["open_id"], RETAIN_MS, 60_000, 100, f"{TENANT}:{stream}", 3)
    pool.client.eval(scripts.load("reply").source, 5, *keys, KEYS.assigned("a", "1"), *fence, "done", "{}", 1, -1, 0)


def test_memory_stays_flat(server: Any) -> None:
    with server.client() as client:
        pool = Pool(client)
        pool.forwarder = Forwarder(
            client, KEYS, RouterMetrics(KEYS.pool, CollectorRegistry()), block_ms=1, retain_s=RETAIN_MS // 1000
        )
        process = psutil.Process()
        router_bytes: list[tuple[float, float]] = []
        redis_bytes: list[tuple[float, float]] = []
        start_s, number = time.monotonic(), 0
        while (now_s := time.monotonic() - start_s) < SECONDS:
            pool.beat("a", capacity={"max_open_streams": 100_000})
            names = [f"s{number + i}" for i in range(STREAMS_A_SECOND)]
            number += STREAMS_A_SECOND
            pool.open(*names)
            pool.send(*(Append(name, text="x" * 1_000) for name in names), *(Finish(name) for name in names))
            while client.xlen(KEYS.ingress(TENANT)):
                pool.turn()
            for name in names:
                end(pool, name)
            client.xtrim(KEYS.log("a", "1"), 0, approximate=False)
            if now_s > SECONDS / 5:
                router_bytes.append((now_s, process.memory_info().rss))
                info: Any = client.info("memory")
                redis_bytes.append((now_s, info["used_memory"]))
            time.sleep(max(start_s + number / STREAMS_A_SECOND - time.monotonic(), 0))
        router_slope, redis_slope = slope(router_bytes), slope(redis_bytes)
        hourly_mb = [each * 3600 / 1e6 for each in (router_slope, redis_slope)]
        print(f"\nrouter {hourly_mb[0]:.2f} MB/h, Redis {hourly_mb[1]:.2f} MB/h, {number} streams")
        assert pool.usage()["streams"] == 0
        # A stream has some kilobytes; a leak of a hundredth of that in each would be more than this.
        assert router_slope < 50 * STREAMS_A_SECOND
        assert redis_slope < 50 * STREAMS_A_SECOND
