"""Ten minutes at a steady load: the memory of router, pod and Redis stays flat. Prints the slopes."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from pool import Pool
from running import KEYS, Run
from slopes import slope
from workload import PlannedStream

from stream2llm.entries import Append, Finish, Open

pytestmark = [pytest.mark.e2e, pytest.mark.redis, pytest.mark.long]
SECONDS = float(os.environ.get("SOAK_SECONDS") or 600)
STREAMS_A_SECOND = 4
PARAMS: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
WARM_UP = 0.4
"""The part of the time in which caches and pools of memory may fill."""
PROCESS_BYTES_PER_STREAM = 2_000
"""More than this, stream by stream, would be a leak; a stream has some kilobytes of text."""
REDIS_BYTES_PER_STREAM = 100
SAMPLE_S = 2.0
SMALL_CACHE = ("--num-gpu-blocks-override", "256")
"""The KV cache is allocated at once and touched block by block: a large one would look like a leak until it has been
used up once."""


def planned(number: int) -> PlannedStream:
    begin_s, stream = number / STREAMS_A_SECOND, f"soak-{number}"
    chunks = [f"{number} {part} " * 40 for part in ("one", "two")]
    entries: list[tuple[float, Any]] = [(begin_s, Open(stream, prompt="{context}", params=PARAMS))]
    entries += [(begin_s + 0.2 * i, Append(stream, text=chunk, chunk=f"c{i}")) for i, chunk in enumerate(chunks, 1)]
    entries.append((begin_s + 0.6, Finish(stream)))
    return PlannedStream("default", stream, "\n\n".join(chunks), 8, entries)


@dataclass
class Memory:
    """Samples of one thing, as seconds and bytes."""

    points: list[tuple[float, float]] = field(default_factory=list)

    def bytes_per_stream(self) -> float:
        settled = [point for point in self.points if point[0] > WARM_UP * SECONDS]
        return slope(settled) / STREAMS_A_SECOND


def watch(pool: Pool, stop: threading.Event) -> dict[str, Memory]:
    """Samples until told to stop; a process counts with all that it has started."""
    memory = {name: Memory() for name in ("router", "pod", "Redis")}
    processes = {"router": psutil.Process(pool.routers[0].pid), "pod": psutil.Process(pool.pods[0].pid)}
    start_s = time.monotonic()
    with pool.redis.client() as client:
        while not stop.wait(SAMPLE_S):
            now_s = time.monotonic() - start_s
            for name, process in processes.items():
                family = [process, *process.children(recursive=True)]
                memory[name].points.append((now_s, sum(each.memory_info().rss for each in family)))
            info: Any = client.info("memory")
            memory["Redis"].points.append((now_s, info["used_memory"]))
    return memory


def test_memory_stays_flat(tiny_text_model: Path, redis_binary: str, tmp_path: Path) -> None:
    pool = Pool(redis_binary, tiny_text_model, tmp_path, pods=1, routers=1, engine_arguments=SMALL_CACHE)
    stop = threading.Event()
    found: dict[str, Memory] = {}
    watcher = threading.Thread(target=lambda: found.update(watch(pool, stop)))
    try:
        pool.wait_ready()
        run = Run(pool, [planned(number) for number in range(round(SECONDS * STREAMS_A_SECOND))], [])
        watcher.start()
        run.run()
        stop.set()
        watcher.join()
        leaks = {name: memory.bytes_per_stream() for name, memory in found.items()}
        for name, memory in found.items():
            hourly_mb = leaks[name] * STREAMS_A_SECOND * 3600 / 1e6
            first, last = memory.points[0][1] / 1e6, memory.points[-1][1] / 1e6
            print(
                f"\n{name}: {hourly_mb:.2f} MB/h, {leaks[name]:.0f} bytes a stream; {first:.1f} MB, then {last:.1f} MB"
            )
        ended = [reply for reply in run.replies.values() if reply.ended]
        assert len(ended) == len(run.replies)
        with pool.redis.client() as client:
            assert int(client.hget(KEYS.usage("default"), "streams") or 0) == 0
        assert leaks["router"] < PROCESS_BYTES_PER_STREAM
        assert leaks["pod"] < PROCESS_BYTES_PER_STREAM
        assert leaks["Redis"] < REDIS_BYTES_PER_STREAM
        assert run.left_behind() == []
    finally:
        stop.set()
        pool.close()
