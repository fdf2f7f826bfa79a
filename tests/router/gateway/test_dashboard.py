"""The page for people, in a real browser."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from running_router import RunningRouter, running_router

from stream2llm.keys import PoolKeys

pytestmark = pytest.mark.redis
POOL = "team/llama"
KEYS = PoolKeys(POOL)
NASTY = "<img src=x onerror=alert(1)>"


def beat(client: redis.Redis, name: str, open_streams: int) -> None:
    seconds, _ = client.time()
    document = {
        "incarnation": f"i-{len(name)}",
        "protocol": 1,
        "state": "ready",
        "capacity": {"max_open_streams": 64, "kv_tokens": 1},
        "load": {"open_streams": open_streams, "backlog_tokens": 12_345, "kv_usage": 0.5},
        "figures": {
            "preemptions": {"memory": 17, "policy": 4},
            "recomputed_tokens": 678,
            "ttft_ms": {"p50": 210, "p95": 1460, "count": 9},
        },
        "prefill_tokens_per_s": 5100,
        "time_ms": seconds * 1000,
    }
    client.hset(KEYS.pods, name, json.dumps(document))


@pytest.fixture
def router(valkey_server: Any, tmp_path: Path) -> Iterator[RunningRouter]:
    client = redis.Redis(port=valkey_server.port, protocol=2)
    client.flushall()
    client.sadd(KEYS.tenants, "acme")
    stop = threading.Event()

    def beating() -> None:
        while not stop.wait(0.5):
            for name, open_streams in (("pod-a", 7), (NASTY, 3)):
                with contextlib.suppress(redis.RedisError):
                    beat(client, name, open_streams)

    thread = threading.Thread(target=beating)
    thread.start()
    try:
        with running_router(f"redis://127.0.0.1:{valkey_server.port}", POOL, tmp_path) as running:
            give_up_s = time.monotonic() + 60
            while len(httpx.get(f"{running.url}/overview.json").json()["pods"]) < 2:
                assert time.monotonic() < give_up_s
                time.sleep(0.1)
            yield running
    finally:
        stop.set()
        thread.join()


def test_the_overview_needs_no_token_and_no_redis(router: RunningRouter) -> None:
    look = httpx.get(f"{router.url}/overview.json").json()
    assert look["pool"] == POOL
    assert look["redis_reachable"] is True
    pods = {pod["name"]: pod for pod in look["pods"]}
    assert pods["pod-a"]["open_streams"] == 7
    assert (pods["pod-a"]["memory_preemptions"], pods["pod-a"]["ttft_p95_ms"]) == (17, 1460)
    assert [tenant["name"] for tenant in look["tenants"]] == ["acme"]


def test_the_page_loads_nothing_from_elsewhere(router: RunningRouter) -> None:
    answer = httpx.get(f"{router.url}/dashboard")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'; connect-src 'self';" in answer.headers["content-security-policy"]
    assert re.findall(r"(?:src|href)\s*=", answer.text) == []


def test_a_browser_shows_the_figures_and_runs_nothing_that_is_in_a_name(router: RunningRouter, tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is missing: apt-get install chromium")
    picture = tmp_path / "dashboard.png"
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--window-size=1200,700", f"--screenshot={picture}", "--dump-dom", "--timeout=20000"]
    command += ["--virtual-time-budget=15000", f"{router.url}/dashboard"]
    document = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    text = re.sub(r"<(script|style).*?</\1>", "", document, flags=re.DOTALL)
    assert 'Pool <span id="pool">team/llama</span>' in text
    assert "7 / 64" in text
    assert "12,345" in text
    assert "1,460 ms" in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "<img" not in text
    assert re.search(r"<b>2</b><span>pods ready</span>", text)
    assert re.search(r"<b>10</b><span>open streams</span>", text)
