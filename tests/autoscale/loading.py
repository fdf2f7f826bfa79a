"""Load for a pool: so many streams open at a time, each of which ends after a while; what became of each is kept."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass

import redis

from stream2llm.keys import DEFAULT_TENANT, PoolKeys

CHUNKS, CHUNK_TOKENS, CHUNK_S = 8, 64, 1.0
PARAMS = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}
TICK_S = 0.1


@dataclass(slots=True)
class Open:
    """A stream that has not ended."""

    name: str
    next_s: float
    sent: int = 0
    is_finished: bool = False


class Load:
    """Start it as a context, and set `level`: the number of streams that are to be open."""

    def __init__(self, redis_url: str, keys: PoolKeys) -> None:
        self._client, self._keys = redis.Redis.from_url(redis_url, protocol=2), keys
        self.level = 0
        self.outcomes: Counter[str] = Counter()
        """How streams ended: `done`, or the code of an error."""
        self.ttft_ms: list[tuple[float, float]] = []
        """When an answer ended, by time.monotonic, and how long its first token had taken."""
        self._open: list[Open] = []
        self._names = (f"s{number}" for number in itertools.count())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self.failure: BaseException | None = None

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()

    @property
    def open_streams(self) -> int:
        return len(self._open)

    @property
    def lost(self) -> dict[str, int]:
        """Streams that ended otherwise than with an answer."""
        return {outcome: count for outcome, count in self.outcomes.items() if outcome != "done"}

    def send_rubbish(self) -> None:
        """An entry that belongs to no stream."""
        self._client.xadd(self._keys.ingress(DEFAULT_TENANT), {"stream": "nobody", "op": "append", "text": "x"})

    def _run(self) -> None:
        try:
            while not self._stop.wait(TICK_S):
                self._turn()
        except BaseException as error:
            self.failure = error

    def _turn(self) -> None:
        now_s = time.monotonic()
        pipeline = self._client.pipeline(transaction=False)
        # One at a time: streams of a crowd do not begin together.
        if len(self._open) < self.level:
            stream = Open(next(self._names), now_s + CHUNK_S)
            self._send(pipeline, stream, "open", prompt="{context}", params=json.dumps(PARAMS))
            self._open.append(stream)
        for stream in self._open:
            if stream.is_finished or now_s < stream.next_s:
                continue
            stream.next_s += CHUNK_S
            if stream.sent == CHUNKS:
                self._send(pipeline, stream, "finish")
                stream.is_finished = True
            else:
                number = int(stream.name[1:])
                # No two streams begin alike, or the prefix cache would serve them.
                tokens = [5 + (number * 31 + stream.sent * 7 + i) % 200 for i in range(CHUNK_TOKENS)]
                self._send(pipeline, stream, "append", tokens=json.dumps(tokens))
                stream.sent += 1
        pipeline.execute()
        self._look(now_s)

    def _send(self, pipeline: redis.client.Pipeline, stream: Open, op: str, **fields: str) -> None:
        pipeline.xadd(self._keys.ingress(DEFAULT_TENANT), {"stream": stream.name, "op": op, **fields})

    def _look(self, now_s: float) -> None:
        """Take note of the streams that have ended, finished or not."""
        pipeline = self._client.pipeline(transaction=False)
        for stream in self._open:
            pipeline.xrevrange(self._keys.reply(DEFAULT_TENANT, stream.name), count=1)
        left = []
        for stream, last in zip(self._open, pipeline.execute(), strict=True):
            fields = last[0][1] if last else {}
            event, data = fields.get(b"event", b"").decode(), json.loads(fields.get(b"data", b"{}"))
            if event == "done":
                self.outcomes["done"] += 1
                self.ttft_ms.append((now_s, data["timings"]["ttft_ms"]))
            elif event == "error" and data["terminal"]:
                self.outcomes[data["code"]] += 1
            else:
                left.append(stream)
        self._open = left
