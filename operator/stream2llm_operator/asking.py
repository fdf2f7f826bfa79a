"""Asking a pool's routers what only they know. In bounded time, and an answer that does not come is no failure."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import aiohttp

from stream2llm_operator.desired.naming import ROUTER_PORT, router_name
from stream2llm_operator.pool import Pool
from stream2llm_operator.shrinking import open_streams

logger = logging.getLogger(__name__)

TIMEOUT_S = 3.0


async def ask_open_streams(pool: Pool) -> Mapping[str, int] | None:
    """Open streams by pod, from any router of the pool; None where none answers."""
    url = f"http://{router_name(pool)}.{pool.namespace}.svc:{ROUTER_PORT}/status.json"
    try:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            answer.raise_for_status()
            return open_streams(await answer.json())
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, AttributeError) as error:
        logger.warning(
            "%s/%s: no router tells which pods are idle: %s", pool.namespace, pool.name, error or "no answer"
        )
        return None
