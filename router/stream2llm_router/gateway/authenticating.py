"""From a bearer token to the tenant whose it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from stream2llm.tokens import TokenRecord, token_digest
from stream2llm_router.gateway.problems import Problem

FRESH_S = 5.0
"""A token that was good so recently is not looked up again; a revoked one is good for so long at most."""
MAX_REMEMBERED = 10_000


class Stored(Protocol):
    """Where tokens and tenants are kept."""

    async def record(self, digest: str) -> TokenRecord | None: ...

    async def serves(self, tenant: str) -> bool: ...


class Authenticator:
    """Knows tokens from Redis and from a file. Without one (`open_to`), everybody is one tenant."""

    def __init__(
        self,
        stored: Stored,
        *,
        from_file: Callable[[], Mapping[str, str]] = dict,
        open_to: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """from_file: tenants by digest, as the file says now; open_to: the tenant of all requests, tokens unread."""
        self._stored, self._from_file, self._open_to, self._clock = stored, from_file, open_to, clock
        self._known: dict[str, tuple[str, float]] = {}

    async def tenant(self, token: str | None) -> str:
        """Raises Problem: 401 without a token that is known, 403 if its tenant is not served."""
        if self._open_to is not None:
            return self._open_to
        if not token:
            raise Problem(401, "unauthorized", "a bearer token is needed: stream2llm tenant token TENANT makes one")
        digest = token_digest(token)
        known = self._known.get(digest)
        if known is not None and self._clock() - known[1] < FRESH_S:
            return known[0]
        self._known.pop(digest, None)
        tenant = await self._look_up(digest)
        if tenant is None:
            raise Problem(401, "unauthorized", "the bearer token is not known")
        if not await self._stored.serves(tenant):
            raise Problem(403, "tenant_not_served", f"tenant {tenant!r} is not served: stream2llm tenant add {tenant}")
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        self._known[digest] = (tenant, self._clock())
        return tenant

    async def _look_up(self, digest: str) -> str | None:
        tenant = self._from_file().get(digest)
        if tenant is not None:
            return tenant
        try:
            record = await self._stored.record(digest)
        except ValueError as error:
            raise Problem(401, "unauthorized", str(error)) from error
        return None if record is None else record.tenant
