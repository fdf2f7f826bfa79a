"""Tenants that a file declares: Redis is kept as the file says, which may change while the router runs.

The operator mounts such a file into its routers. Tenants that `stream2llm tenant add` made are left alone.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import ResponseError

from stream2llm import settings
from stream2llm.keys import PoolKeys, check_tenant
from stream2llm.tenant_limits import MAX_WEIGHT, MIN_WEIGHT

logger = logging.getLogger(__name__)

MOST_TENANTS = 256
LOOK_S = 5.0
REPEAT_S = 60.0
"""How often Redis is looked at though the file has not changed: it may have forgotten."""
DECLARED = "declared"
"""Field of a tenant's limits that says where the tenant comes from."""


@dataclass(frozen=True, slots=True)
class DeclaredTenant:
    """One entry of the file. max_open_streams: None for no limit."""

    name: str
    weight: float = 1.0
    max_open_streams: int | None = None

    def limits(self) -> dict[Any, Any]:
        """As the tenant's hash holds them."""
        limits = {DECLARED: "1", "weight": f"{self.weight:g}"}
        if self.max_open_streams is not None:
            limits["max_open_streams"] = str(self.max_open_streams)
        return limits


def parse_tenants(text: str) -> tuple[DeclaredTenant, ...]:
    """From JSON, a list of objects with `name` and, if wanted, `weight` and `maxOpenStreams`.

    Raises ValueError that names the entry, the field and the limit.
    """
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(entries, list) or not 1 <= len(entries) <= MOST_TENANTS:
        raise ValueError(f"must be a list of 1 to {MOST_TENANTS} tenants")
    tenants = tuple(_tenant(i, entry) for i, entry in enumerate(entries))
    names = [tenant.name for tenant in tenants]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"tenant {twice[0]!r} is there twice")
    return tenants


def _tenant(i: int, entry: Any) -> DeclaredTenant:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise ValueError(f"[{i}] must be an object with a name")
    if unknown := sorted(set(entry) - {"name", "weight", "maxOpenStreams"}):
        raise ValueError(f"[{i}].{unknown[0]} is not known; there are name, weight and maxOpenStreams")
    name, weight, streams = check_tenant(entry["name"]), entry.get("weight", 1), entry.get("maxOpenStreams")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise ValueError(f"[{i}].weight must be a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}, not {weight!r}")
    if streams is not None and (
        isinstance(streams, bool) or not isinstance(streams, int) or not 0 < streams <= 1_000_000
    ):
        raise ValueError(f"[{i}].maxOpenStreams must be a whole number from 1 to 1000000, not {streams!r}")
    return DeclaredTenant(name, float(weight), streams)


class Declaration:
    """One router's eye on the file. Several routers do the same, and each finds the work of the others done."""

    def __init__(
        self, client: redis.Redis, keys: PoolKeys, path: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._keys, self._path, self._clock = client, keys, path, clock
        self._look_at_s = self._repeat_at_s = float("-inf")
        self._text: str | None = None
        self._tenants: tuple[DeclaredTenant, ...] = ()
        self._trouble = ""

    def keep(self) -> None:
        """Look at the file now and then, and make Redis as it says. A file that is wrong changes nothing.

        Raises RedisError.
        """
        now_s = self._clock()
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_S
        if not self._read() and now_s < self._repeat_at_s:
            return
        if self._tenants:
            self._write()
            self._repeat_at_s = now_s + REPEAT_S

    def _read(self) -> bool:
        """Whether the file says something new."""
        try:
            text = self._path.read_text(encoding="utf-8")
            if text == self._text:
                return False
            self._tenants, self._text = parse_tenants(text), text
        except (OSError, ValueError) as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                logger.error("tenants stay as they are: %s: %s", self._path, error)
            return False
        self._trouble = ""
        logger.info("tenants by %s: %s", self._path, ", ".join(tenant.name for tenant in self._tenants))
        return True

    def _write(self) -> None:
        keys = self._keys
        members: Any = self._client.smembers(keys.tenants)
        wanted = {tenant.name for tenant in self._tenants}
        others = sorted(name for name in (raw.decode("utf-8", "replace") for raw in members) if name not in wanted)
        pipeline = self._client.pipeline(transaction=False)
        for name in others:
            pipeline.hexists(keys.limits(name), DECLARED)
        declared: list[Any] = pipeline.execute(raise_on_error=False) if others else []
        pipeline = self._client.pipeline(transaction=False)
        for tenant in self._tenants:
            pipeline.sadd(keys.tenants, tenant.name)
            pipeline.hset(keys.limits(tenant.name), mapping=tenant.limits())
            if tenant.max_open_streams is None:
                pipeline.hdel(keys.limits(tenant.name), "max_open_streams")
            pipeline.pexpire(keys.limits(tenant.name), settings.FORGOTTEN_MS)
        by_hand = False
        for name, is_declared in zip(others, declared, strict=True):
            if is_declared is True or is_declared == 1:
                logger.info("tenant %s is not declared any more", name)
                pipeline.srem(keys.tenants, name)
                pipeline.delete(keys.limits(name))
            else:
                by_hand = True
        # What is declared goes with the last router of the pool. What people have added stays, and so does the set.
        if by_hand:
            pipeline.persist(keys.tenants)
        else:
            pipeline.pexpire(keys.tenants, settings.FORGOTTEN_MS)
        # A key of a foreign type is one tenant's trouble, and not the router's.
        for answer in pipeline.execute(raise_on_error=False):
            if isinstance(answer, ResponseError):
                logger.error("a tenant of %s: %s", self._path, answer)
            elif isinstance(answer, Exception):
                raise answer
