"""Whose turn it is in forwarding: tenants share one router by weight. Pure.

Start-time fair queueing: each tenant has a virtual time that moves on by cost ÷ weight, and the one that is furthest
behind goes next. A tenant that was idle starts where the others are, so nobody saves up turns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

ENTRY_COST_BYTES = 1_024
"""What an entry costs beside its bytes."""
MAX_LAG_COST = 1 << 20
"""How far a tenant may be behind the others; more would let it have the router for itself for long."""


class Turns:
    """The virtual times of the tenants."""

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        self._now = 0.0

    def next(self, waiting: Collection[str]) -> str:
        """The tenant among `waiting` (at least one) whose turn it is."""
        for tenant in waiting:
            self._times[tenant] = max(self._times.get(tenant, self._now), self._now - MAX_LAG_COST)
        tenant = min(waiting, key=lambda tenant: (self._times[tenant], tenant))
        self._now = max(self._now, self._times[tenant])
        return tenant

    def charge(self, tenant: str, size_bytes: int, entries: int, weights: Mapping[str, float]) -> None:
        """`tenant` has had a batch of so many bytes and entries forwarded."""
        cost = size_bytes + entries * ENTRY_COST_BYTES
        self._times[tenant] = self._times.get(tenant, self._now) + cost / weights.get(tenant, 1.0)

    def keep(self, tenants: Collection[str]) -> None:
        """Forget all other tenants."""
        self._times = {tenant: time for tenant, time in self._times.items() if tenant in tenants}
