"""Finds pods that are gone or leave, and gives their streams to others."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import islice
from typing import Any

import redis

from stream2llm import settings
from stream2llm.errors import ErrorCode
from stream2llm.events import ErrorEvent
from stream2llm.keys import PoolKeys
from stream2llm_router.fleet import Fleet, Incarnation
from stream2llm_router.placing import MAX_ATTEMPTS, Placing, Route, cancelled
from stream2llm_router.scripts import Scripts

logger = logging.getLogger(__name__)

_BATCH_STREAMS = 200


class Recovery:
    """Any router declares an incarnation gone, once for all; each then moves the streams of the tenants it holds."""

    def __init__(self, client: redis.Redis, scripts: Scripts, keys: PoolKeys, fleet: Fleet, placing: Placing) -> None:
        self._client, self._scripts, self._keys = client, scripts, keys
        self._fleet, self._placing = fleet, placing

    def declare_gone(self) -> None:
        """Fence the incarnations that are over."""
        for incarnation in self._fleet.silent():
            keys = [self._keys.pods, self._keys.incarnations, self._keys.gone, self._assigned(incarnation)]
            limits = [settings.HEARTBEAT_LAPSE_MS, settings.FORGOTTEN_MS]
            streams = self._scripts.call("fence", keys, [self._keys.prefix, incarnation.pod, incarnation.name, *limits])
            if streams is not None:
                logger.warning("pod %s is gone; it had %d streams", incarnation.pod, streams)
                self._fleet.gone.append(incarnation)

    def serve(self, tenant: str, epoch: str) -> None:
        """Move the tenant's streams off pods that are gone or leave. Raises Fenced."""
        for incarnation in self._fleet.gone:
            streams = self._streams(incarnation, tenant)
            for stream, route in zip(streams, self._placing.routes(tenant, streams), strict=True):
                self._move_from_gone(tenant, epoch, incarnation, stream, route)
        for incarnation in self._fleet.leaving():
            streams = self._streams(incarnation, tenant)
            for stream, route in zip(streams, self._placing.routes(tenant, streams), strict=True):
                if route is not None and route.state != "ended" and route.incarnation == incarnation.name:
                    self._placing.place(tenant, epoch, stream, route, "drain")

    def settle(self) -> None:
        """Forget the incarnations that have no streams left."""
        for incarnation in self._fleet.gone:
            keys = [
                self._keys.gone,
                self._assigned(incarnation),
                self._keys.log(incarnation.pod, incarnation.name),
            ]
            self._scripts.call("settle", keys, [incarnation.member])

    def _move_from_gone(
        self, tenant: str, epoch: str, incarnation: Incarnation, stream: str, route: Route | None
    ) -> None:
        if route is None or route.state == "ended" or route.incarnation != incarnation.name:
            # Nobody is given to an incarnation that is gone, so what is out of date stays so.
            self._client.hdel(self._assigned(incarnation), f"{tenant}:{stream}")
        elif route.cancelled:
            # Its pod has not lived to say so, and there is nothing that another one could add.
            self._placing.end(tenant, epoch, stream, route, cancelled(route))
        elif route.failures >= MAX_ATTEMPTS:
            message = f"the stream was on {route.failures} pods that failed"
            self._placing.end(tenant, epoch, stream, route, ErrorEvent(ErrorCode.ATTEMPTS_EXHAUSTED, message))
        elif not self._placing.place(tenant, epoch, stream, route, "recovery"):
            self._placing.hold(tenant, epoch, stream, route)

    def _streams(self, incarnation: Incarnation, tenant: str) -> list[str]:
        prefix = f"{tenant}:"
        found: Mapping[Any, Any] = self._client.hgetall(self._assigned(incarnation))  # type: ignore[assignment]
        members = (member.decode("utf-8", "replace") for member in found)
        own = (member[len(prefix) :] for member in members if member.startswith(prefix))
        return list(islice(own, _BATCH_STREAMS))

    def _assigned(self, incarnation: Incarnation) -> str:
        return self._keys.assigned(incarnation.pod, incarnation.name)
