"""Streams that wait for a pod. Redis knows them (`held`), so whoever holds the lease finds them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Set
from typing import Any

import redis

from stream2llm.errors import ErrorCode
from stream2llm.events import ErrorEvent
from stream2llm.keys import PoolKeys
from stream2llm_router.assigning import Lack, Needs
from stream2llm_router.fleet import Fleet
from stream2llm_router.metrics import RouterMetrics
from stream2llm_router.placing import Placing

logger = logging.getLogger(__name__)

MAX_HELD_STREAMS = 1_000
"""Streams of one tenant that may wait for a pod; one more ends with `overloaded`."""
_BATCH_STREAMS = 100


def own_deadline_ms(opening: Mapping[bytes, bytes]) -> int | None:
    """How long a stream may take by the options of its open, None if there is no limit or it cannot be read."""
    try:
        deadline_ms = json.loads(opening.get(b"options", b"{}")).get("deadline_ms")
    except (ValueError, AttributeError, RecursionError):
        return None
    return deadline_ms if isinstance(deadline_ms, int) and not isinstance(deadline_ms, bool) else None


def is_late(now_ms: int, held_ms: int, without_pods_ms: int, open_wait_ms: int, start_wait_ms: int) -> bool:
    """Whether a stream that has been held since `held_ms` has waited long enough. All times are of Redis.

    without_pods_ms: when there was last no pod at all. A pod that comes after a start has `open_wait_ms` to take the
    streams that waited for it; in all, none waits longer than `start_wait_ms`.
    """
    return now_ms - max(held_ms, without_pods_ms) >= open_wait_ms or now_ms - held_ms >= start_wait_ms


class Holding:
    """Tries held streams again, oldest first, and ends those for which no pod was found in time."""

    def __init__(
        self,
        client: redis.Redis,
        keys: PoolKeys,
        fleet: Fleet,
        placing: Placing,
        metrics: RouterMetrics,
        open_wait_ms: int,
        start_wait_ms: int,
    ) -> None:
        """start_wait_ms: how long a stream may wait in all where there are no pods, as one may be starting."""
        self._client, self._keys, self._fleet, self._placing = client, keys, fleet, placing
        self._metrics, self._open_wait_ms, self._start_wait_ms = metrics, open_wait_ms, start_wait_ms
        self._without_pods_ms = 0
        self._lacks: dict[str, frozenset[Lack]] = {}

    @property
    def lacks(self) -> frozenset[Lack]:
        """Why streams wait at present."""
        return frozenset().union(*list(self._lacks.values()))

    def serve(self, tenant: str, epoch: str) -> None:
        """Assign what can be assigned and end what has waited too long. Raises Fenced."""
        oldest: Any = self._client.zrange(self._keys.held(tenant), 0, _BATCH_STREAMS - 1)
        streams = [raw.decode("utf-8", "replace") for raw in oldest]
        lacks = set()
        for stream, route in zip(streams, self._placing.routes(tenant, streams), strict=True):
            if route is None or route.state == "ended":
                self._client.zrem(self._keys.held(tenant), stream)
            # One that finds no pod may be particular (a model, a fingerprint); others may be luckier.
            elif not self._placing.place(tenant, epoch, stream, route, "held" if route.attempt == 0 else "recovery"):
                lacks.add(self._fleet.lack(route.needs()))
        self._note(tenant, lacks)
        self._expire(tenant, epoch)

    def nobody_waits(self, tenant: str) -> None:
        """No stream of the tenant waits, or it is another router's."""
        self._note(tenant, frozenset())

    def _note(self, tenant: str, lacks: Set[Lack]) -> None:
        if lacks == self._lacks.get(tenant, frozenset()):
            return
        if lacks:
            self._lacks[tenant] = frozenset(lacks)
            logger.warning("streams of tenant %s wait: %s", tenant, "; ".join(lack.told() for lack in sorted(lacks)))
        else:
            del self._lacks[tenant]
            logger.info("no stream of tenant %s waits any more", tenant)
        self._metrics.waiting_for(self.lacks)

    def _expire(self, tenant: str, epoch: str) -> None:
        now_ms = self._fleet.now_ms
        if self._fleet.lack(Needs()) is Lack.NO_POD:
            self._without_pods_ms = now_ms
        since = now_ms - self._open_wait_ms
        held: Any = self._client.zrangebyscore(
            self._keys.held(tenant), "-inf", since, 0, _BATCH_STREAMS, withscores=True
        )
        since_ms = {raw.decode("utf-8", "replace"): int(held_ms) for raw, held_ms in held}
        overdue_ms = self._overdue_ms(tenant, list(since_ms), now_ms)
        streams = [
            stream
            for stream, held_ms in since_ms.items()
            if stream in overdue_ms
            or is_late(now_ms, held_ms, self._without_pods_ms, self._open_wait_ms, self._start_wait_ms)
        ]
        for stream, route in zip(streams, self._placing.routes(tenant, streams), strict=True):
            if route is None:
                continue
            if stream in overdue_ms:
                code = ErrorCode.DEADLINE
                message = f"the stream's deadline of {overdue_ms[stream]} ms has passed, and no pod has taken it"
            elif route.next_token and self._fleet.serves_other_models_only(route.fingerprint):
                code = ErrorCode.MODEL_CHANGED
                message = "the stream has sent tokens, and no pod has the model any more that they came from"
            else:
                code = ErrorCode.OVERLOADED
                lack = self._fleet.lack(route.needs())
                waited_ms = self._start_wait_ms if lack is Lack.NO_POD else self._open_wait_ms
                message = f"no pod has taken the stream within {waited_ms} ms: {lack.told()}"
            self._placing.end(tenant, epoch, stream, route, ErrorEvent(code, message))

    def _overdue_ms(self, tenant: str, streams: list[str], now_ms: int) -> dict[str, int]:
        """Of these streams, those past their own deadlines, which nobody else looks at while no pod has them."""
        pipeline = self._client.pipeline(transaction=False)
        for stream in streams:
            pipeline.xrange(self._keys.entries(tenant, stream), count=1)
        answers: list[Any] = pipeline.execute(raise_on_error=False)
        overdue = {}
        for stream, answer in zip(streams, answers, strict=True):
            if not isinstance(answer, list) or not answer:
                continue
            opening = answer[0][1]
            deadline_ms = own_deadline_ms(opening)
            opened_ms = int(opening.get(b"ingress_id", b"0").split(b"-")[0])
            if deadline_ms is not None and opened_ms and now_ms >= opened_ms + deadline_ms:
                overdue[stream] = deadline_ms
        return overdue
