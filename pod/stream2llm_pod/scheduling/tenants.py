"""Whose turn it is: tenants share the prefill of one engine by weight. Pure.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) over prompt tokens: each tenant has a virtual time that
moves on by the tokens it had computed ÷ its weight, and the one that is furthest behind goes first. A tenant that had
nothing to compute starts where the others are, so nobody saves up turns, and nobody owes more than one step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


class Turns:
    """The virtual times of the tenants, in tokens ÷ weight."""

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        self._now = 0.0

    def time(self, tenant: str) -> float:
        """Where the tenant stands now; the smallest goes first."""
        return max(self._times.get(tenant, self._now), self._now)

    def charge(self, tokens: Mapping[str, int], weights: Mapping[str, float]) -> None:
        """One step has computed so many prompt tokens of each tenant; a weight that is not given is 1."""
        starts = {tenant: self.time(tenant) for tenant in tokens}
        for tenant, start in starts.items():
            self._times[tenant] = start + tokens[tenant] / weights.get(tenant, 1.0)
            self._now = max(self._now, start)

    def keep(self, tenants: Collection[str]) -> None:
        """Forget all others that are not ahead of their turn."""
        self._times = {tenant: time for tenant, time in self._times.items() if tenant in tenants or time > self._now}

    def __len__(self) -> int:
        """How many tenants are remembered."""
        return len(self._times)


@dataclass(slots=True)
class Holding:
    """What one tenant holds of the memory while a plan grows: KV blocks and run slots."""

    weight: float
    blocks: int
    slots: int

    def share(self, total: Holding, *, more_blocks: int = 0, more_slots: int = 0) -> float:
        """Its dominant share (Ghodsi et al., NSDI 2011) of `total`, by weight, with so much more."""
        blocks = (self.blocks + more_blocks) / max(total.blocks, 1)
        slots = (self.slots + more_slots) / max(total.slots, 1)
        return max(blocks, slots) / self.weight
