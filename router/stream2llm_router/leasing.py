"""Holding the leases of tenants: one router serves a tenant at a time, and the tenants are spread over the routers."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence

from redis.exceptions import ResponseError

from stream2llm import settings
from stream2llm.keys import PoolKeys
from stream2llm_router.scripts import Scripts
from stream2llm_router.sharing import share

logger = logging.getLogger(__name__)


class Leases:
    """The epochs this router holds. A lease counts as held until it must be renewed, never longer."""

    def __init__(
        self,
        scripts: Scripts,
        keys: PoolKeys,
        router: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.router = router or secrets.token_hex(8)
        self._scripts, self._keys, self._clock = scripts, keys, clock
        self._epochs: dict[str, str] = {}
        self._renew_at_s: dict[str, float] = {}
        self._attend_at_s = float("-inf")
        self._routers: list[str] = [self.router]
        self._shared: tuple[list[str], list[str]] = ([], [])
        self._shares: dict[str, str] = {}

    def hold(self, tenants: Sequence[str]) -> dict[str, str]:
        """Tenant → epoch of this router's share of `tenants`, as far as it has got the leases.

        A tenant that has become another's is given back, so that it is taken over at once.
        """
        now_s = self._clock()
        if self._attend_at_s <= now_s:
            answer = self._scripts.call("attend", [self._keys.routers], [self.router, settings.LEASE_MS, 0])
            self._routers = [raw.decode("utf-8", "replace") for raw in answer]
            self._attend_at_s = now_s + settings.LEASE_RENEW_MS / 1000
        # Asked in every turn, and seldom another answer.
        if (shared := (list(tenants), self._routers)) != self._shared:
            self._shared, self._shares = shared, share(tenants, self._routers)
        shares = self._shares
        for tenant in [tenant for tenant in self._epochs if shares.get(tenant) != self.router]:
            self._release(tenant)
        held = {}
        for tenant in tenants:
            if shares.get(tenant) == self.router and (epoch := self._take(tenant, now_s)) is not None:
                held[tenant] = epoch
        return held

    def drop(self, tenant: str) -> None:
        """Another router has taken over."""
        self._epochs.pop(tenant, None)
        self._renew_at_s.pop(tenant, None)

    def release_all(self) -> None:
        """Give everything back, so that others need not wait for it to lapse."""
        for tenant in list(self._epochs):
            self._release(tenant)
        self._scripts.call("attend", [self._keys.routers], [self.router, settings.LEASE_MS, 1])

    def _take(self, tenant: str, now_s: float) -> str | None:
        if self._renew_at_s.get(tenant, float("-inf")) > now_s:
            return self._epochs.get(tenant)
        self._renew_at_s[tenant] = now_s + settings.LEASE_RENEW_MS / 1000
        try:
            keys = [self._keys.lease(tenant), self._keys.ingress(tenant)]
            answer = self._scripts.call("lease", keys, [self.router, settings.LEASE_MS])
        except ResponseError as error:
            logger.error("the lease of tenant %s cannot be taken: %s", tenant, error)
            answer = None
        if answer is None:
            self._epochs.pop(tenant, None)
            return None
        self._epochs[tenant] = answer.decode()
        return self._epochs[tenant]

    def _release(self, tenant: str) -> None:
        epoch = self._epochs[tenant]
        keys = [self._keys.lease(tenant), self._keys.ingress(tenant)]
        self._scripts.call("release", keys, [epoch, settings.FORGOTTEN_MS])
        self.drop(tenant)
