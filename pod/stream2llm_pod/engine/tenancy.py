"""Whose an engine request is, in its extra arguments: the serving side writes it for streams, the router's gateway for
requests to the OpenAI endpoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stream2llm.keys import DEFAULT_TENANT, TENANT_PATTERN
from stream2llm.tenant_limits import TENANT_ARGUMENT, WEIGHT_ARGUMENT, checked_weight


@dataclass(frozen=True, slots=True)
class TenantShare:
    """A tenant and its weight."""

    tenant: str = DEFAULT_TENANT
    weight: float = 1.0

    def to_extra_args(self) -> dict[str, Any]:
        return {TENANT_ARGUMENT: self.tenant, WEIGHT_ARGUMENT: self.weight}


def read_share(extra_args: Mapping[str, Any] | None) -> TenantShare | None:
    """Whose the request is; None where nobody says so, or what is said cannot be read: it comes past the router then,
    and the scheduler must not fail for it."""
    tenant = extra_args.get(TENANT_ARGUMENT) if extra_args else None
    if not (isinstance(tenant, str) and TENANT_PATTERN.fullmatch(tenant)):
        return None
    try:
        return TenantShare(tenant, checked_weight((extra_args or {}).get(WEIGHT_ARGUMENT, 1.0)))
    except (TypeError, ValueError):
        return TenantShare(tenant)


class Tenants:
    """The tenants of the requests that an engine has, and the weight that each was last given."""

    def __init__(self) -> None:
        self.weights: dict[str, float] = {}
        self._of: dict[str, str] = {}
        self._requests: Counter[str] = Counter()

    def add(self, req_id: str, share: TenantShare) -> None:
        """A request has come; what it says of the weight holds for all of the tenant's from now on."""
        self._of[req_id] = share.tenant
        self._requests[share.tenant] += 1
        self.weights[share.tenant] = share.weight

    def of(self, req_id: str) -> str:
        """The default tenant where nobody has said anything."""
        return self._of.get(req_id, DEFAULT_TENANT)

    def discard(self, req_id: str) -> None:
        """A request has left; the last one takes its tenant's weight along."""
        tenant = self._of.pop(req_id, None)
        if tenant is None:
            return
        self._requests[tenant] -= 1
        if not self._requests[tenant]:
            del self._requests[tenant], self.weights[tenant]

    def __len__(self) -> int:
        """Requests that belong to somebody who was named."""
        return len(self._of)
