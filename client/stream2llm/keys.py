"""Names of all Redis keys of a pool (`docs/wire-protocol.md`).

All keys of one pool share the hash tag `{<namespace>/<name>}`, so they live in one slot and one server-side
script may touch several of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TENANT_PATTERN = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
STREAM_PATTERN = re.compile(r"[A-Za-z0-9._:-]{1,128}")
POOL_PATTERN = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
DEFAULT_POOL = "default/default"
DEFAULT_TENANT = "default"


@dataclass(frozen=True, slots=True)
class PoolKeys:
    """Key names of the pool `<namespace>/<name>`.

    Raises ValueError for a pool name that is not two DNS names joined by one slash.
    """

    pool: str = DEFAULT_POOL

    def __post_init__(self) -> None:
        if not POOL_PATTERN.fullmatch(self.pool):
            raise ValueError(f"pool {self.pool!r} is not NAMESPACE/NAME in lower-case letters, digits, '-' and '.'")

    @property
    def prefix(self) -> str:
        return f"s2l:{{{self.pool}}}"

    @property
    def tenants(self) -> str:
        return f"{self.prefix}:tenants"

    @property
    def tokens(self) -> str:
        return f"{self.prefix}:tokens"

    @property
    def pods(self) -> str:
        return f"{self.prefix}:pods"

    @property
    def incarnations(self) -> str:
        """Set of `<pod>:<incarnation>` that have registered and are not known to be gone."""
        return f"{self.prefix}:incarnations"

    @property
    def gone(self) -> str:
        """Set of `<pod>:<incarnation>` that are gone and whose streams are being given to others."""
        return f"{self.prefix}:gone"

    @property
    def routers(self) -> str:
        """Hash of the routers that are there, each with the Redis time (ms) at which it last said so."""
        return f"{self.prefix}:routers"

    def ingress(self, tenant: str) -> str:
        return f"{self.prefix}:ingress:{tenant}"

    def lease(self, tenant: str) -> str:
        return f"{self.prefix}:lease:{tenant}"

    def route(self, tenant: str, stream: str) -> str:
        return f"{self.prefix}:route:{tenant}:{stream}"

    def entries(self, tenant: str, stream: str) -> str:
        return f"{self.prefix}:entries:{tenant}:{stream}"

    def reply(self, tenant: str, stream: str) -> str:
        return f"{self.prefix}:reply:{tenant}:{stream}"

    def rejected(self, tenant: str) -> str:
        return f"{self.prefix}:rejected:{tenant}"

    def held(self, tenant: str) -> str:
        """Sorted set of the streams that wait for a pod, by the Redis time (ms) since when they do."""
        return f"{self.prefix}:held:{tenant}"

    def usage(self, tenant: str) -> str:
        """Hash: open streams of the tenant, the bytes of their entries, and the entries taken from its ingress."""
        return f"{self.prefix}:usage:{tenant}"

    def limits(self, tenant: str) -> str:
        """Hash: the tenant's weight and its limits on open streams and bytes."""
        return f"{self.prefix}:limits:{tenant}"

    def assigned(self, pod: str, incarnation: str) -> str:
        """Hash of the streams, as `<tenant>:<stream>`, that one incarnation of a pod has, each with its failures."""
        return f"{self.prefix}:assigned:{pod}:{incarnation}"

    def log(self, pod: str, incarnation: str) -> str:
        return f"{self.prefix}:log:{pod}:{incarnation}"


def check_tenant(tenant: str) -> str:
    """Return `tenant`, or raise ValueError naming what is wrong with it."""
    if not TENANT_PATTERN.fullmatch(tenant):
        raise ValueError(f"tenant {tenant!r} must be 1 to 63 of a-z, 0-9 and '-', not starting or ending with '-'")
    return tenant


def check_stream(stream: str) -> str:
    """Return the stream id, or raise ValueError naming what is wrong with it."""
    if not STREAM_PATTERN.fullmatch(stream):
        shown = stream if len(stream) <= 140 else stream[:140] + "…"
        raise ValueError(f"stream {shown!r} must be 1 to 128 of A-Z, a-z, 0-9, '.', '_', ':' and '-'")
    return stream
