"""Tenants that a file declares, on a real server."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.keys import PoolKeys
from stream2llm.settings import FORGOTTEN_MS
from stream2llm_router.declaring import LOOK_S, REPEAT_S, Declaration, DeclaredTenant, parse_tenants

KEYS = PoolKeys("tests/declaring")


def test_what_a_file_says() -> None:
    text = '[{"name": "search", "weight": 3, "maxOpenStreams": 200}, {"name": "news"}]'
    assert parse_tenants(text) == (DeclaredTenant("search", 3.0, 200), DeclaredTenant("news", 1.0, None))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("{}", "must be a list of 1 to 256 tenants"),
        ("[]", "must be a list of 1 to 256 tenants"),
        (json.dumps([{"name": f"t{i}"} for i in range(257)]), "must be a list of 1 to 256 tenants"),
        ('["a"]', r"\[0\] must be an object with a name"),
        ('[{"name": 7}]', r"\[0\] must be an object with a name"),
        ('[{"name": "A"}]', "tenant 'A' must be 1 to 63 of"),
        ('[{"name": "a"}, {"name": "a"}]', "tenant 'a' is there twice"),
        ('[{"name": "a", "wait": 1}]', r"\[0\].wait is not known; there are name, weight and maxOpenStreams"),
        ('[{"name": "a", "weight": 0}]', r"\[0\].weight must be a number from 0.001 to 1000, not 0"),
        ('[{"name": "a", "weight": NaN}]', r"\[0\].weight must be"),
        ('[{"name": "a", "weight": true}]', r"\[0\].weight must be"),
        ('[{"name": "a", "maxOpenStreams": 1.5}]', r"\[0\].maxOpenStreams must be a whole number"),
        ('[{"name": "a", "maxOpenStreams": 0}]', r"\[0\].maxOpenStreams must be a whole number"),
    ],
)
def test_a_wrong_file_is_refused_by_entry_and_field(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_tenants(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_nothing_else_than_a_value_error_comes_of_any_json(value: Any) -> None:
    try:
        parse_tenants(json.dumps(value))
    except ValueError:
        return


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def client(server: Any) -> redis.Redis:
    return redis.Redis(port=server.port, protocol=2)


def tenants(client: redis.Redis) -> set[bytes]:
    found: Any = client.smembers(KEYS.tenants)
    return set(found)


@pytest.mark.redis
def test_redis_follows_the_file_and_keeps_what_others_made(client: redis.Redis, tmp_path: Path) -> None:
    file, clock = tmp_path / "tenants.json", Clock()
    client.sadd(KEYS.tenants, "by-hand")
    client.hset(KEYS.limits("by-hand"), "weight", "9")
    file.write_text('[{"name": "a", "weight": 2, "maxOpenStreams": 5}, {"name": "b"}]')
    declaration = Declaration(client, KEYS, file, clock)
    declaration.keep()
    assert tenants(client) == {b"a", b"b", b"by-hand"}
    assert client.hgetall(KEYS.limits("a")) == {b"declared": b"1", b"weight": b"2", b"max_open_streams": b"5"}
    file.write_text('[{"name": "a"}]')
    declaration.keep()
    assert b"b" in tenants(client), "the file is looked at now and then only"
    clock.now_s += LOOK_S
    declaration.keep()
    assert tenants(client) == {b"a", b"by-hand"}
    assert client.hgetall(KEYS.limits("a")) == {b"declared": b"1", b"weight": b"1"}
    assert not client.exists(KEYS.limits("b"))
    assert client.hgetall(KEYS.limits("by-hand")) == {b"weight": b"9"}


@pytest.mark.redis
def test_a_restarted_router_removes_what_its_forerunner_declared(client: redis.Redis, tmp_path: Path) -> None:
    file = tmp_path / "tenants.json"
    file.write_text('[{"name": "old"}, {"name": "stays"}]')
    Declaration(client, KEYS, file).keep()
    file.write_text('[{"name": "stays"}]')
    Declaration(client, KEYS, file).keep()
    assert tenants(client) == {b"stays"}


@pytest.mark.redis
def test_a_redis_that_has_forgotten_is_told_again(client: redis.Redis, tmp_path: Path) -> None:
    file, clock = tmp_path / "tenants.json", Clock()
    file.write_text('[{"name": "a"}]')
    declaration = Declaration(client, KEYS, file, clock)
    declaration.keep()
    client.flushall()
    clock.now_s += REPEAT_S
    declaration.keep()
    assert tenants(client) == {b"a"}


@pytest.mark.redis
def test_nothing_that_is_declared_outlives_its_routers_for_ever(client: redis.Redis, tmp_path: Path) -> None:
    """A pool that is deleted leaves nothing without an expiry; what people have added to one stays."""
    file, clock = tmp_path / "tenants.json", Clock()
    file.write_text('[{"name": "a", "maxOpenStreams": 5}, {"name": "b"}]')
    declaration = Declaration(client, KEYS, file, clock)
    declaration.keep()
    for key in (KEYS.tenants, KEYS.limits("a"), KEYS.limits("b")):
        assert 0 < client.pttl(key) <= FORGOTTEN_MS  # type: ignore[operator]
    client.sadd(KEYS.tenants, "by-hand")
    client.hset(KEYS.limits("by-hand"), "weight", "9")
    clock.now_s += REPEAT_S
    declaration.keep()
    assert client.ttl(KEYS.tenants) == client.ttl(KEYS.limits("by-hand")) == -1
    assert client.ttl(KEYS.limits("a")) != -1
    client.srem(KEYS.tenants, "by-hand")
    clock.now_s += REPEAT_S
    declaration.keep()
    assert client.ttl(KEYS.tenants) != -1


@pytest.mark.redis
@pytest.mark.parametrize("change", ["wrong", "gone"])
def test_a_file_that_goes_wrong_changes_nothing_and_is_told_once(
    client: redis.Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    file, clock = tmp_path / "tenants.json", Clock()
    file.write_text('[{"name": "a"}]')
    declaration = Declaration(client, KEYS, file, clock)
    declaration.keep()
    if change == "wrong":
        file.write_text('[{"name": "NO"}]')
    else:
        os.unlink(file)
    with caplog.at_level(logging.ERROR):
        for _ in range(30):
            clock.now_s += LOOK_S
            declaration.keep()
    assert tenants(client) == {b"a"}
    assert [record.message for record in caplog.records if "tenants stay as they are" in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == 1


@pytest.mark.redis
def test_a_key_of_a_foreign_type_hurts_its_own_tenant_only(client: redis.Redis, tmp_path: Path) -> None:
    file = tmp_path / "tenants.json"
    file.write_text('[{"name": "a", "weight": 4}, {"name": "b", "weight": 5}]')
    client.set(KEYS.limits("a"), "text")
    Declaration(client, KEYS, file).keep()
    assert tenants(client) == {b"a", b"b"}
    assert client.hget(KEYS.limits("b"), "weight") == b"5"
