"""Holding the leases of tenants: one router serves a tenant at a time, the others stand by."""

from __future__ import annotations

import secrets
import time

from stream2llm import settings
from stream2llm.keys import PoolKeys
from stream2llm_router.scripts import Scripts


class Leases:
    """The epochs this router holds. A lease counts as held until it must be renewed, never longer."""

    def __init__(self, scripts: Scripts, keys: PoolKeys, router: str | None = None) -> None:
        self.router = router or secrets.token_hex(8)
        self._scripts, self._keys = scripts, keys
        self._epochs: dict[str, str] = {}
        self._renew_at_s: dict[str, float] = {}

    def hold(self, tenant: str, now_s: float | None = None) -> str | None:
        """The epoch of `tenant` if this router holds or gets its lease; None while another has it."""
        now_s = time.monotonic() if now_s is None else now_s
        if self._renew_at_s.get(tenant, 0.0) > now_s:
            return self._epochs.get(tenant)
        answer = self._scripts.call("lease", [self._keys.lease(tenant)], [self.router, settings.LEASE_MS])
        self._renew_at_s[tenant] = now_s + settings.LEASE_RENEW_MS / 1000
        if answer is None:
            self._epochs.pop(tenant, None)
            return None
        self._epochs[tenant] = answer.decode()
        return self._epochs[tenant]

    def drop(self, tenant: str) -> None:
        """Another router has taken over."""
        self._epochs.pop(tenant, None)
        self._renew_at_s.pop(tenant, None)

    def release_all(self) -> None:
        for tenant, epoch in self._epochs.items():
            self._scripts.call("release", [self._keys.lease(tenant)], [epoch])
        self._epochs.clear()
        self._renew_at_s.clear()
