"""Which replica is at work: one holds a Lease and renews it; the others take it over once it has stopped changing.

Clocks of two machines are never compared. A standby measures on its own clock for how long the Lease has not changed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from stream2llm_operator.kube import ApiError, KubeApi

LEASE_NAME = "stream2llm-operator"
LEASE_S = 15.0
"""A Lease that has not changed for this long is free."""
RENEW_DEADLINE_S = 10.0
"""A holder that could not renew for this long ends; shorter than LEASE_S, so that nobody writes beside it."""
RETRY_S = 2.0


class Step(enum.Enum):
    """What to do about the Lease."""

    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


def next_step(lease: Mapping[str, Any] | None, identity: str, unchanged_s: float) -> Step:
    """unchanged_s: for how long the Lease has looked as it does, by our own clock."""
    if lease is None:
        return Step.CREATE
    holder = (lease.get("spec") or {}).get("holderIdentity") or ""
    if holder == identity:
        return Step.RENEW
    return Step.TAKE if not holder or unchanged_s >= LEASE_S else Step.WAIT


@dataclass(slots=True)
class LeaseHolder:
    """One replica's dealings with the Lease. clock: seconds that never go back."""

    api: KubeApi
    namespace: str
    identity: str
    clock: Callable[[], float]
    _seen: str = ""
    _seen_at_s: float = 0.0
    _lease: dict[str, Any] | None = field(default=None)

    async def hold(self) -> bool:
        """Get or renew the Lease if that can be; whether it is ours now. Raises ApiError where that is not known."""
        lease = await self.api.get("Lease", self.namespace, LEASE_NAME)
        version = lease["metadata"]["resourceVersion"] if lease is not None else ""
        if version != self._seen:
            self._seen, self._seen_at_s = version, self.clock()
        step = next_step(lease, self.identity, self.clock() - self._seen_at_s)
        if step is Step.WAIT:
            return False
        try:
            if lease is None:
                self._lease = await self.api.create(self._manifest({}, acquired=True))
            else:
                self._lease = await self.api.replace(self._manifest(lease, acquired=step is Step.TAKE))
        except ApiError as error:
            if error.status == 409:
                # Somebody was faster.
                return False
            raise
        return True

    async def release(self) -> None:
        """Give the Lease back, so that nobody has to wait for it. Raises ApiError."""
        if self._lease is not None:
            spec = {**self._lease["spec"], "holderIdentity": ""}
            await self.api.replace({**self._lease, "spec": spec})
            self._lease = None

    def _manifest(self, lease: Mapping[str, Any], *, acquired: bool) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = lease.get("spec") or {}
        spec = {**before, "holderIdentity": self.identity, "leaseDurationSeconds": int(LEASE_S), "renewTime": now}
        if acquired:
            spec |= {"acquireTime": now, "leaseTransitions": before.get("leaseTransitions", -1) + 1}
        metadata = lease.get("metadata") or {"name": LEASE_NAME, "namespace": self.namespace}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
