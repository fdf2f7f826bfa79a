"""Rubbish in ingress: nothing ends, and every valid neighbour gets through."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import redis
from lone_router import KEYS, TENANT, Pool
from prometheus_client import CollectorRegistry
from rubbish import rubbish

from stream2llm.entries import Append, Finish, Open, encode
from stream2llm_router.forwarding import Forwarder
from stream2llm_router.metrics import RouterMetrics

pytestmark = pytest.mark.redis
NEIGHBOURS = 5


def fuzz(client: redis.Redis, count: int) -> None:
    seed = int(os.environ.get("FUZZ_SEED") or random.SystemRandom().randrange(1_000_000))
    print(f"\nFUZZ_SEED={seed}")
    chance = random.Random(seed)
    pool = Pool(client)
    pool.beat("a", capacity={"max_open_streams": 1_000_000})
    names = [f"neighbour-{i}" for i in range(NEIGHBOURS)]
    pool.open(*names)
    sent: dict[str, list[str]] = {name: [] for name in names}
    for number in range(count):
        entry: Any = rubbish(chance)
        client.xadd(KEYS.ingress(TENANT), entry)
        if number % 20 == 0:
            name = chance.choice(names)
            sent[name].append(f"t{number}")
            pool.send(Append(name, text=sent[name][-1], chunk=sent[name][-1]))
        if number % 200 == 0:
            pool.turn()
    pool.send(*(Finish(name) for name in names))
    while client.xlen(KEYS.ingress(TENANT)):
        pool.turn()
    for name in names:
        entries = [fields for _, fields in client.xrange(KEYS.entries(TENANT, name))]
        assert [fields[b"text"].decode() for fields in entries if b"text" in fields] == sent[name]
        assert entries[-1][b"op"] == b"finish"
        assert [int(fields[b"seq"]) for fields in entries] == list(range(1, len(entries) + 1))
        assert pool.place(name)[0] == "finishing"
    assert pool.forwarder._failures == {}


def test_a_thousand_pieces_of_rubbish(server: Any) -> None:
    with server.client() as client:
        fuzz(client, 1_000)


@pytest.mark.long
def test_ten_thousand_pieces_of_rubbish(server: Any) -> None:
    with server.client() as client:
        fuzz(client, 10_000)


def test_one_tenant_s_rubbish_does_not_hold_up_another(server: Any) -> None:
    with server.client() as client:
        pool = Pool(client)
        pool.beat("a")
        client.sadd(KEYS.tenants, TENANT, "loud")
        chance = random.Random(1)
        for _ in range(500):
            entry: Any = rubbish(chance)
            client.xadd(KEYS.ingress("loud"), entry)
        forwarder = Forwarder(client, KEYS, RouterMetrics(KEYS.pool, CollectorRegistry()), block_ms=1)
        client.delete(KEYS.lease(TENANT), KEYS.routers)
        fields: Any = encode(Open("s", prompt="{context}"))
        client.xadd(KEYS.ingress(TENANT), fields)
        forwarder.turn()
        assert pool.place("s")[0] == "open"
