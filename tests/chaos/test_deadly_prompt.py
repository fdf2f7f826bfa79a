"""A prompt that ends every engine that computes it ends after three, and its neighbours are answered."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pool import SIMULATION, Pool
from running import KEYS, Run
from workload import PlannedStream

from stream2llm.entries import Append, Finish, Open
from stream2llm.events import ErrorEvent, is_terminal

pytestmark = [pytest.mark.e2e, pytest.mark.redis]
DEADLY = "Deadly prompt, deadly prompt, deadly prompt, deadly prompt: "
PARAMS: dict[str, Any] = {"max_tokens": 20, "temperature": 0, "ignore_eos": True}
NEIGHBOURS = 9


def neighbour(number: int) -> PlannedStream:
    """Open before the deadly one comes, and finished after it has had time to do its work."""
    stream, template = f"n{number}", f"Neighbour {number}: {{context}} Question?"
    chunks = [f"chunk {number} {i}" for i in range(8)]
    entries: list[tuple[float, Any]] = [(0.1 * number, Open(stream, prompt=template, params=PARAMS))]
    entries += [(2.0 + i, Append(stream, text=chunk, chunk=f"c{i}")) for i, chunk in enumerate(chunks)]
    entries.append((12.0, Finish(stream)))
    return PlannedStream("default", stream, template.replace("{context}", "\n\n".join(chunks)), 20, entries)


def keep_alive(pool: Pool, stop: threading.Event) -> None:
    """Start again whatever ends, as Kubernetes does."""
    while not stop.is_set():
        for pod in pool.pods:
            if pod.gone():
                pod.kill()
                pod.start()
        time.sleep(0.2)


def test_a_deadly_prompt(tiny_text_model: Path, redis_binary: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    fatal = AutoTokenizer.from_pretrained(str(tiny_text_model)).encode(DEADLY)[:8]
    simulation = SIMULATION | {"fatal_prompt": fatal}
    pool = Pool(redis_binary, tiny_text_model, tmp_path, pods=3, routers=2, simulation=simulation)
    stop = threading.Event()
    keeper = threading.Thread(target=keep_alive, args=(pool, stop))
    try:
        pool.wait_ready()
        keeper.start()
        opening = Open("deadly", prompt=f"{DEADLY}{{context}}", params=PARAMS)
        deadly = PlannedStream("default", "deadly", "", 20, [(3.0, opening)])
        neighbours = [neighbour(i) for i in range(NEIGHBOURS)]
        run = Run(pool, [*neighbours, deadly], [])
        run.run()
        (end,) = [event for event in run.replies["default", "deadly"].events if is_terminal(event)]
        assert isinstance(end, ErrorEvent)
        assert end.code == "attempts_exhausted"
        pool.wait_ready()
        run.replies.pop(("default", "deadly"))
        run.leave_out("deadly")
        assert run.wrong() == []
        with pool.redis.client() as client:
            assert int(client.hget(KEYS.usage("default"), "streams") or 0) == 0
    finally:
        stop.set()
        if keeper.is_alive():
            keeper.join()
        pool.close()
