"""The rules of Redis users, as text."""

from __future__ import annotations

import hashlib

import pytest

from stream2llm.access import pod_rules, router_rules, tenant_rules, user_name
from stream2llm.keys import PoolKeys

KEYS = PoolKeys("ns/pool")


def test_a_tenants_rules_name_its_keys_and_nothing_else() -> None:
    assert tenant_rules(KEYS, "acme").aclfile_line() == (
        "user ns_pool_acme on resetpass resetkeys resetchannels -@all %W~s2l:{ns/pool}:ingress:acme "
        "%R~s2l:{ns/pool}:reply:acme:* %R~s2l:{ns/pool}:rejected:acme +xadd +xread +xrange +exists +ping"
    )
    assert tenant_rules(KEYS, "acme", "me").command().startswith("ACL SETUSER me on resetpass ")


def test_a_password_is_there_as_its_digest_only() -> None:
    line = tenant_rules(KEYS, "acme").with_password("secret").aclfile_line()
    assert line.endswith(" #" + hashlib.sha256(b"secret").hexdigest())
    assert "secret" not in line


def test_servers_have_the_keys_of_their_pool() -> None:
    for rules in (router_rules(KEYS), pod_rules(KEYS)):
        assert [rule for rule in rules.rules if "~" in rule] == ["~s2l:{ns/pool}:*"]
        assert rules.rules[4] == "-@all"


def test_names_of_users_are_never_shared() -> None:
    names = {user_name(pool, name) for pool in ("a/b", "b/a", "a.b/c", "a/b.c") for name in ("default", "x", "_router")}
    assert len(names) == 12
    assert "default" not in names


def test_a_tenant_that_is_no_name_gets_no_rules() -> None:
    with pytest.raises(ValueError, match="tenant 'a\\*' must be"):
        tenant_rules(KEYS, "a*")
