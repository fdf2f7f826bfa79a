"""Streams that wait for a pod. Redis knows them (`held`), so whoever holds the lease finds them."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from typing import Any

import redis

from stream2llm.errors import ErrorCode
from stream2llm.events import ErrorEvent
from stream2llm.keys import PoolKeys
from stream2llm_router.fleet import Fleet
from stream2llm_router.metrics import RouterMetrics
from stream2llm_router.scripts import Ended, Gone, Scripts, Stale

logger = logging.getLogger(__name__)

LOG_LIVE_MS = 3_600_000
"""A pod log that the router had to make anew, as its pod has just gone, expires after this."""
MAX_HELD_STREAMS = 1_000
"""Streams of one tenant that may wait for a pod; one more ends with `overloaded`."""
_BATCH_STREAMS = 100


def held_key(keys: PoolKeys, tenant: str) -> str:
    """Sorted set of the tenant's held streams, by the Redis time (ms) at which they came."""
    return f"{keys.prefix}:held:{tenant}"


class Holding:
    """Tries held streams again, oldest first, and ends those for which no pod was found in time."""

    def __init__(
        self,
        client: redis.Redis,
        scripts: Scripts,
        keys: PoolKeys,
        fleet: Fleet,
        metrics: RouterMetrics,
        retain_ms: int,
        open_wait_ms: int,
    ) -> None:
        self._client, self._scripts, self._keys = client, scripts, keys
        self._fleet, self._metrics = fleet, metrics
        self._retain_ms, self._open_wait_ms = retain_ms, open_wait_ms

    def serve(self, tenant: str, epoch: str) -> None:
        """Assign what can be assigned and end what has waited too long. Raises Fenced."""
        oldest: Any = self._client.zrange(held_key(self._keys, tenant), 0, _BATCH_STREAMS - 1)
        for raw in oldest:
            pod = self._fleet.choose()
            if pod is None:
                break
            stream = raw.decode("utf-8", "replace")
            keys = [self._keys.lease(tenant), self._keys.route(tenant, stream), held_key(self._keys, tenant)]
            arguments = [epoch, self._keys.prefix, tenant, stream, 0, pod.name, pod.incarnation, LOG_LIVE_MS]
            try:
                self._scripts.call("assign", keys, arguments)
                self._metrics.assigned("held")
            except (Ended, Stale):
                logger.debug("held stream %s/%s was settled elsewhere", tenant, stream)
            except Gone:
                break
        self._expire(tenant, epoch)

    def _expire(self, tenant: str, epoch: str) -> None:
        message = f"no pod had room for the stream within {self._open_wait_ms} ms"
        event = json.dumps(asdict(ErrorEvent(ErrorCode.OVERLOADED, message, None, True, None)))
        ended = self._scripts.call(
            "expire_held",
            [self._keys.lease(tenant), held_key(self._keys, tenant)],
            [epoch, self._keys.prefix, tenant, self._open_wait_ms, self._retain_ms, _BATCH_STREAMS, event],
        )
        self._metrics.rejected(ErrorCode.OVERLOADED, int(ended))
