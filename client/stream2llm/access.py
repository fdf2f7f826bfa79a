"""Redis ACL rules: what the user of a tenant, of a router or of a pod may do. No I/O.

The key patterns keep tenants apart, so nothing else in the system has to; `docs/security.md` explains each rule.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from stream2llm.keys import PoolKeys, check_tenant

_NOBODY = ("on", "resetpass", "resetkeys", "resetchannels", "-@all")
_TENANT_COMMANDS = ("+xadd", "+xread", "+xrange", "+exists", "+ping")
# Redis checks what a script does against its caller, so these include the commands inside our scripts.
_SERVER_COMMANDS = (
    "+@read",
    "+@write",
    "+@connection",
    "+@scripting",
    "+@transaction",
    "+time",
    "-@dangerous",
    "+info",
)
_ROUTER_COMMANDS = ("+client|id", "+client|unblock")


@dataclass(frozen=True, slots=True)
class UserRules:
    """One Redis user. `rules` are what ACL SETUSER takes, in order."""

    user: str
    rules: tuple[str, ...]

    def with_password(self, password: str) -> UserRules:
        """The same with a password, of which only the SHA-256 appears."""
        return UserRules(self.user, (*self.rules, "#" + hashlib.sha256(password.encode()).hexdigest()))

    def aclfile_line(self) -> str:
        """A line for Redis's `aclfile`."""
        return " ".join(("user", self.user, *self.rules))

    def command(self) -> str:
        """The same as a command for redis-cli."""
        return " ".join(("ACL", "SETUSER", self.user, *self.rules))


def user_name(pool: str, name: str) -> str:
    """A name that two tenants, or two pools of one server, never share. `_` occurs in none of the parts."""
    return "_".join((*pool.split("/"), name))


def tenant_rules(keys: PoolKeys, tenant: str, user: str | None = None) -> UserRules:
    """Write to the tenant's ingress, read its replies and its rejected entries, and nothing else."""
    check_tenant(tenant)
    patterns = (
        f"%W~{keys.ingress(tenant)}",
        f"%R~{keys.reply(tenant, '*')}",
        f"%R~{keys.rejected(tenant)}",
    )
    return UserRules(user or user_name(keys.pool, tenant), (*_NOBODY, *patterns, *_TENANT_COMMANDS))


def router_rules(keys: PoolKeys, user: str | None = None) -> UserRules:
    """All keys of the pool, and cutting its own blocking reads short."""
    rules = (*_NOBODY, f"~{keys.prefix}:*", *_SERVER_COMMANDS, *_ROUTER_COMMANDS)
    return UserRules(user or user_name(keys.pool, "_router"), rules)


def pod_rules(keys: PoolKeys, user: str | None = None) -> UserRules:
    """All keys of the pool."""
    return UserRules(user or user_name(keys.pool, "_pod"), (*_NOBODY, f"~{keys.prefix}:*", *_SERVER_COMMANDS))
