"""One router with its gateway and one stand-in pod for all tests of a module; two tenants with tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from http_caller import KEYS, POOL, Caller
from running_router import RunningRouter, make_token, running_router
from standin_pod import StandInPod


@pytest.fixture(scope="module")
def pod(redis_server: Any) -> Iterator[StandInPod]:
    with redis_server.client() as client:
        client.flushall()
        client.sadd(KEYS.tenants, "acme", "globex")
    pod = StandInPod(redis_server.client, KEYS)
    yield pod
    pod.stop()


@pytest.fixture(scope="module")
def router(redis_server: Any, pod: StandInPod, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRouter]:
    with running_router(redis_server.url, POOL, tmp_path_factory.mktemp("gateway"), "--retain-seconds", "60") as router:
        yield router


@pytest.fixture(scope="module")
def tokens(redis_server: Any, router: RunningRouter) -> dict[str, str]:
    return {tenant: make_token(redis_server.url, POOL, tenant) for tenant in ("acme", "globex")}


@pytest.fixture
def acme(router: RunningRouter, tokens: dict[str, str]) -> Iterator[Caller]:
    with Caller(router.url, tokens["acme"]) as caller:
        yield caller


@pytest.fixture
def globex(router: RunningRouter, tokens: dict[str, str]) -> Iterator[Caller]:
    with Caller(router.url, tokens["globex"]) as caller:
        yield caller


@pytest.fixture
def nobody(router: RunningRouter) -> Iterator[Caller]:
    with Caller(router.url, None) as caller:
        yield caller
