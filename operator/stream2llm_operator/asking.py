"""Asking a pool's routers what only they know. In bounded time, and an answer that does not come is no failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from stream2llm_operator.desired.naming import ROUTER_PORT, router_name
from stream2llm_operator.pool import Pool
from stream2llm_operator.shrinking import open_streams

logger = logging.getLogger(__name__)

TIMEOUT_S = 3.0


class Routers:
    """The routers over HTTP, each at its Service's or its pod's address."""

    async def open_streams(self, pool: Pool) -> Mapping[str, int] | None:
        """Open streams by pod, from any router of the pool that is ready; None where none answers."""
        status = await _status(f"{router_name(pool)}.{pool.namespace}.svc")
        if status is None:
            logger.warning("%s/%s: no router tells which pods are idle", pool.namespace, pool.name)
        return None if status is None else open_streams(status)

    async def miss_redis(self, addresses: Sequence[str]) -> bool:
        """Whether a router at one of these addresses says that it cannot reach Redis."""
        answers = await asyncio.gather(*(_status(address) for address in addresses))
        return any(answer is not None and answer.get("redis_reachable") is False for answer in answers)


async def _status(host: str) -> Mapping[str, Any] | None:
    """What the router at this host says of itself; None where it does not answer so."""
    url = f"http://{f'[{host}]' if ':' in host else host}:{ROUTER_PORT}/status.json"
    try:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            answer.raise_for_status()
            found = await answer.json()
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        logger.info("no answer from %s: %s", url, error or type(error).__name__)
        return None
    return found if isinstance(found, Mapping) else None
