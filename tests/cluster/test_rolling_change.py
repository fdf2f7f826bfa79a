"""A rolling change of real pods while many streams are open: without a spare place, and none is lost."""

from __future__ import annotations

import json

import cpu_pool
import pytest
from operator_process import wait_for
from pools import NAME, Pool

pytestmark = pytest.mark.kubernetes

STREAMS = 50
PARAMS = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
PROMPT = "Read.\n\n{context}\n\nSo:"


def context(number: int) -> list[str]:
    return [f"Stream {number} begins with {number * 7 % 53}.", f"It ends with {number * 11 % 61}."]


def test_open_streams_survive_a_change_of_the_engine(pool: Pool) -> None:
    spec = cpu_pool.spec(scheduling={"preemption": "recompute"}, costProfile={"measure": {}}, replicas=2)
    # Either pod has room for all, and they may stay open while engines start.
    spec["engine"]["maxSequences"] = 128
    spec["streams"] |= {"maxOpenStreams": 64, "idleTimeoutSeconds": 3600}
    pool.apply(spec)
    pool.wait("Ready")
    streams = [f"s{number}" for number in range(STREAMS)]
    for number, stream in enumerate(streams):
        pool.send(stream, "open", prompt=PROMPT, params=json.dumps(PARAMS))
        pool.send(stream, "append", chunk="first", text=context(number)[0])
    wait_for("all are accepted", lambda: all(pool.events(stream) for stream in streams), 180)

    before = {pod["metadata"]["uid"] for pod in pool.pods()}
    spec["engine"]["maxBatchedTokens"] = 256
    pool.apply(spec)
    wait_for("the change is under way", lambda: pool.condition("Ready")[0] == "False", 120)
    pool.wait("Ready", 1200)
    assert before.isdisjoint(pod["metadata"]["uid"] for pod in pool.pods())

    for number, stream in enumerate(streams):
        pool.send(stream, "append", chunk="second", text=context(number)[1])
        pool.send(stream, "finish", expect="2")
    wait_for("all have ended", lambda: all(pool.events(stream)[-1][0] in ("done", "error") for stream in streams), 300)
    for number, stream in enumerate(streams):
        events = pool.events(stream)
        assert [data for kind, data in events if kind == "error"] == []
        answer = "".join(data["text"] for kind, data in events if kind == "token")
        if number % 10 == 0:
            whole = PROMPT.replace("{context}", "\n\n".join(context(number)))
            stock = pool.post("/v1/completions", {"model": NAME, "prompt": whole, **PARAMS})
            assert answer == stock["choices"][0]["text"]
        assert events[-1][1]["usage"]["completion_tokens"] == PARAMS["max_tokens"]
