"""Finds out that somebody has taken entries out of an ingress stream before they were forwarded."""

from __future__ import annotations

import logging
from typing import Any

import redis
from redis.exceptions import ResponseError

from stream2llm import settings
from stream2llm.errors import ErrorCode
from stream2llm.keys import PoolKeys
from stream2llm_router.metrics import RouterMetrics

logger = logging.getLogger(__name__)


def missing_entries(added: int, length: int, taken: int | None) -> int | None:
    """How many entries went without having been taken; None if there is nothing to compare with yet.

    added: entries that the stream has ever had; length: those it has; taken: those that routers took out of it.
    """
    if taken is None or added - length < taken:
        # The count has expired, or the stream was deleted and has begun anew.
        return None
    return added - length - taken


class Trimming:
    """Looks at one tenant's ingress. Only the holder of its lease may: nobody else takes entries meanwhile."""

    def __init__(self, client: redis.Redis, keys: PoolKeys, metrics: RouterMetrics) -> None:
        self._client, self._keys, self._metrics = client, keys, metrics

    def look(self, tenant: str) -> None:
        """Count what is missing, say so in the log and in `rejected`: which streams it was of, nobody knows."""
        try:
            info: Any = self._client.xinfo_stream(self._keys.ingress(tenant))
        except ResponseError:
            return
        added, length = int(info["entries-added"]), int(info["length"])
        raw: Any = self._client.hget(self._keys.usage(tenant), "taken")
        missing = missing_entries(added, length, None if raw is None else int(raw))
        if missing == 0:
            return
        pipeline = self._client.pipeline(transaction=True)
        pipeline.hset(self._keys.usage(tenant), "taken", added - length)
        pipeline.pexpire(self._keys.usage(tenant), settings.FORGOTTEN_MS)
        if missing:
            message = f"{missing} entries left ingress before they were forwarded; does a producer trim it (MAXLEN)?"
            logger.error("tenant %s: %s", tenant, message)
            self._metrics.rejected(ErrorCode.LOST, missing)
            fields: Any = {"code": ErrorCode.LOST, "message": message, "field": "", "ingress_id": "", "stream": ""}
            pipeline.xadd(self._keys.rejected(tenant), fields, maxlen=settings.MAX_REJECTED, approximate=True)
            pipeline.pexpire(self._keys.rejected(tenant), settings.FORGOTTEN_MS)
        pipeline.execute()
