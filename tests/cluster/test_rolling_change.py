"""A rolling change of real pods while many streams are open: without a spare place, and none is lost."""

from __future__ import annotations

import json
from typing import Any

import cpu_pool
import pytest
from pools import NAME, Pool
from waiting import wait_for

pytestmark = pytest.mark.kubernetes

STREAMS = [f"s{number}" for number in range(50)]
PARAMS = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
PROMPT = "Read.\n\n{context}\n\nSo:"
ROLLED_S = 1200


def context(number: int) -> list[str]:
    return [f"Stream {number} begins with {number * 7 % 53}.", f"It ends with {number * 11 % 61}."]


class Streams:
    """Fifty streams of a pool, through one connection."""

    def __init__(self, pool: Pool) -> None:
        self._client, self._prefix = pool.redis(), pool.key_prefix

    def send(self, operation: str, of: Any) -> None:
        """One entry for each stream; `of` gives the fields by number."""
        pipeline = self._client.pipeline(transaction=False)
        for number, stream in enumerate(STREAMS):
            fields = {"stream": stream, "op": operation, **of(number)}
            pipeline.xadd(f"{self._prefix}:ingress:default", fields)
        pipeline.execute()

    def events(self) -> list[list[tuple[str, dict[str, Any]]]]:
        """What each reply has so far."""
        pipeline = self._client.pipeline(transaction=False)
        for stream in STREAMS:
            pipeline.xrange(f"{self._prefix}:reply:default:{stream}")
        replies = pipeline.execute()
        return [[(fields["event"], json.loads(fields["data"])) for _, fields in reply] for reply in replies]


# Four engines start one after another.
@pytest.mark.timeout(3600)
def test_open_streams_survive_a_change_of_the_engine(pool: Pool) -> None:
    spec = cpu_pool.spec(scheduling={"preemption": "recompute"}, costProfile={"measure": {}}, replicas=2)
    # Either pod has room for all, and they may stay open while engines start.
    spec["engine"]["maxSequences"] = 128
    spec["streams"] |= {"maxOpenStreams": 64, "idleTimeoutSeconds": 3600}
    pool.apply(spec)
    pool.wait("Ready", ROLLED_S)
    streams = Streams(pool)
    streams.send("open", lambda number: {"prompt": PROMPT, "params": json.dumps(PARAMS)})
    streams.send("append", lambda number: {"chunk": "first", "text": context(number)[0]})
    wait_for("all are accepted", lambda: all(streams.events()), 180)

    before = {pod["metadata"]["uid"] for pod in pool.pods()}
    spec["engine"]["maxBatchedTokens"] = 256
    pool.apply(spec)
    wait_for("the change is under way", lambda: pool.condition("Ready")[0] == "False", 120)
    pool.wait("Ready", ROLLED_S)
    assert before.isdisjoint(pod["metadata"]["uid"] for pod in pool.pods())

    streams.send("append", lambda number: {"chunk": "second", "text": context(number)[1]})
    streams.send("finish", lambda number: {"expect": "2"})
    wait_for("all have ended", lambda: all(events[-1][0] in ("done", "error") for events in streams.events()), 300)
    for number, events in enumerate(streams.events()):
        assert [data for kind, data in events if kind == "error"] == []
        # Each went from pod to pod at least once.
        assert max(data["attempt"] for kind, data in events if kind == "accepted") > 1
        answer = "".join(data["text"] for kind, data in events if kind == "token")
        if number % 10 == 0:
            whole = PROMPT.replace("{context}", "\n\n".join(context(number)))
            stock = pool.post("/v1/completions", {"model": NAME, "prompt": whole, **PARAMS})
            assert answer == stock["choices"][0]["text"]
        assert events[-1][1]["usage"]["completion_tokens"] == PARAMS["max_tokens"]
