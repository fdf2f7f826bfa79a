"""Streams that wait for a pod."""

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
from stream2llm_router.scripts import Ended, Scripts, Stale

logger = logging.getLogger(__name__)


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
        self._held: dict[str, dict[str, int]] = {}

    def __len__(self) -> int:
        return sum(len(streams) for streams in self._held.values())

    def add(self, tenant: str, stream: str, opened_ms: int) -> None:
        self._held.setdefault(tenant, {})[stream] = opened_ms

    def forget(self, tenant: str) -> None:
        """The tenant is another router's now."""
        self._held.pop(tenant, None)

    def find(self, tenant: str) -> None:
        """After a take-over: look for the streams that the last router held."""
        prefix = self._keys.route(tenant, "")
        for key in self._client.scan_iter(match=_escaped(prefix) + "*", count=500):
            found: Any = self._client.hmget(key, "state", "opened_ms")
            state, opened_ms = found
            if state == b"held":
                self.add(tenant, key.decode()[len(prefix) :], int(opened_ms))

    def serve(self, tenant: str, epoch: str) -> None:
        """Assign what can be assigned. Raises Fenced."""
        held = self._held.get(tenant)
        if not held:
            return
        for stream, opened_ms in sorted(held.items(), key=lambda item: item[1]):
            pod = self._fleet.choose()
            if pod is None and self._fleet.now_ms - opened_ms < self._open_wait_ms:
                continue
            try:
                if pod is None:
                    self._expire(tenant, stream, epoch)
                else:
                    self._scripts.call(
                        "assign",
                        [self._keys.lease(tenant), self._keys.route(tenant, stream)],
                        [epoch, self._keys.prefix, tenant, stream, 0, pod.name, pod.incarnation],
                    )
                    self._metrics.assigned("held")
            except (Ended, Stale):
                logger.debug("held stream %s/%s was settled elsewhere", tenant, stream)
            del held[stream]

    def _expire(self, tenant: str, stream: str, epoch: str) -> None:
        message = f"no pod could take the stream within {self._open_wait_ms} ms"
        event = ErrorEvent(ErrorCode.OVERLOADED, message, None, True, None)
        keys = [
            self._keys.lease(tenant),
            self._keys.route(tenant, stream),
            self._keys.reply(tenant, stream),
            self._keys.entries(tenant, stream),
        ]
        self._scripts.call("expire_held", keys, [epoch, self._retain_ms, json.dumps(asdict(event))])
        self._metrics.rejected(ErrorCode.OVERLOADED)


def _escaped(prefix: str) -> str:
    return "".join("\\" + c if c in "\\*?[]" else c for c in prefix)
