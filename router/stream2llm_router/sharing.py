"""Which router serves which tenant. Pure, so that all routers that see one another come to the same answer."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection


def share(tenants: Collection[str], routers: Collection[str]) -> dict[str, str]:
    """Tenant → router: no router gets more than its part rounded up, and few tenants move when a router comes or goes.

    Empty if there are no routers.
    """
    if not routers:
        return {}
    most = -(-len(tenants) // len(routers))
    taken: Counter[str] = Counter()
    shares = {}
    for tenant in sorted(tenants):
        for router in sorted(routers, key=lambda router: _score(tenant, router)):
            if taken[router] < most:
                shares[tenant] = router
                taken[router] += 1
                break
    return shares


def _score(tenant: str, router: str) -> bytes:
    return hashlib.blake2b(f"{tenant} {router}".encode(), digest_size=8).digest()
