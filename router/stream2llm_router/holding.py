"""Streams that wait for a pod. Redis knows them (`held`), so whoever holds the lease finds them."""

from __future__ import annotations

from typing import Any

import redis

from stream2llm.errors import ErrorCode
from stream2llm.keys import PoolKeys
from stream2llm_router.fleet import Fleet
from stream2llm_router.placing import Placing

MAX_HELD_STREAMS = 1_000
"""Streams of one tenant that may wait for a pod; one more ends with `overloaded`."""
_BATCH_STREAMS = 100


class Holding:
    """Tries held streams again, oldest first, and ends those for which no pod was found in time."""

    def __init__(self, client: redis.Redis, keys: PoolKeys, fleet: Fleet, placing: Placing, open_wait_ms: int) -> None:
        self._client, self._keys, self._fleet, self._placing = client, keys, fleet, placing
        self._open_wait_ms = open_wait_ms

    def serve(self, tenant: str, epoch: str) -> None:
        """Assign what can be assigned and end what has waited too long. Raises Fenced."""
        oldest: Any = self._client.zrange(self._keys.held(tenant), 0, _BATCH_STREAMS - 1)
        streams = [raw.decode("utf-8", "replace") for raw in oldest]
        for stream, route in zip(streams, self._placing.routes(tenant, streams), strict=True):
            if route is None or route.state == "ended":
                self._client.zrem(self._keys.held(tenant), stream)
            else:
                # One that finds no pod may be particular (a model, a fingerprint); others may be luckier.
                self._placing.place(tenant, epoch, stream, route, "held" if route.attempt == 0 else "recovery")
        self._expire(tenant, epoch)

    def _expire(self, tenant: str, epoch: str) -> None:
        since = self._fleet.now_ms - self._open_wait_ms
        late: Any = self._client.zrangebyscore(self._keys.held(tenant), "-inf", since, 0, _BATCH_STREAMS)
        streams = [raw.decode("utf-8", "replace") for raw in late]
        for stream, route in zip(streams, self._placing.routes(tenant, streams), strict=True):
            if route is None:
                continue
            if route.next_token and self._fleet.serves_other_models_only(route.fingerprint):
                code = ErrorCode.MODEL_CHANGED
                message = "the stream has sent tokens, and no pod has the model any more that they came from"
            else:
                code = ErrorCode.OVERLOADED
                message = f"no pod had room for the stream within {self._open_wait_ms} ms"
            self._placing.end(tenant, epoch, stream, route, code, message)
