"""The parts of the gateway, put together and taken apart with the server."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import redis.asyncio

from stream2llm.composing import Fields
from stream2llm.ending import end_tasks
from stream2llm.keys import DEFAULT_TENANT, PoolKeys
from stream2llm.overview.reading import Overview
from stream2llm_router.gateway.authenticating import Authenticator
from stream2llm_router.gateway.hub import Hub
from stream2llm_router.gateway.limits import LimitReached, Limits, OpenStreams, Slots
from stream2llm_router.gateway.metrics import GatewayMetrics
from stream2llm_router.gateway.pods import PodDirectory
from stream2llm_router.gateway.problems import Problem
from stream2llm_router.gateway.streams import Streams

CONNECT_TIMEOUT_S = 5.0
UPSTREAM_CONNECTIONS = 1_000


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What `stream2llm route` was told about HTTP.

    needs_tokens: otherwise everybody is the default tenant. tokens_from_file: tenants by digest. pod_api_key: what the
    pods' `--api-key` wants; pod_ca_file: the authorities of their certificates, if they speak TLS.
    """

    limits: Limits = field(default_factory=Limits)
    needs_tokens: bool = True
    tokens_from_file: Callable[[], dict[str, str]] = dict
    pod_api_key: str | None = field(default=None, repr=False)
    pod_ca_file: str | None = None


class Gateway:
    """Everything that the routes share. Made before the event loop runs; `running` starts it there."""

    def __init__(
        self,
        settings: GatewaySettings,
        keys: PoolKeys,
        connect: Callable[[], redis.asyncio.Redis],
        status: Callable[[], dict[str, Any]],
        overview: Callable[[], Overview],
        metrics: GatewayMetrics,
        weight: Callable[[str], float] = lambda tenant: 1.0,
    ) -> None:
        """connect: a new Redis client that retries nothing by itself; status and overview: what the forwarding side
        knows; weight: a tenant's."""
        self.settings, self.keys, self.metrics, self.weight = settings, keys, metrics, weight
        self._connect, self._status, self._overview = connect, status, overview
        limits = settings.limits
        self.open_streams = OpenStreams(limits.max_open_streams)
        self.readers = Slots("readers", limits.max_readers)
        self.requests = Slots("requests to the pods", limits.max_requests)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.streams: Streams
        self.hub: Hub
        self.authenticator: Authenticator
        self.pods: PodDirectory
        self.upstream: httpx.AsyncClient

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Redis and pods are reached from here on; at the end all readers are let go."""
        # Nothing is connected here: the server starts without Redis too, and says so.
        blocking = self._connect()
        self.streams = Streams(self._connect(), self.keys)
        self.hub = Hub(blocking.client(), self.streams)
        self.authenticator = Authenticator(
            self.streams,
            from_file=self.settings.tokens_from_file,
            open_to=None if self.settings.needs_tokens else DEFAULT_TENANT,
        )
        self.pods = PodDirectory(self.streams)
        verify: ssl.SSLContext | bool = True
        if self.settings.pod_ca_file:
            verify = ssl.create_default_context(cafile=self.settings.pod_ca_file)
        self.upstream = httpx.AsyncClient(
            verify=verify,
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=UPSTREAM_CONNECTIONS, max_keepalive_connections=64),
        )
        following = asyncio.create_task(self.hub.run(), name="hub")
        self._loop = asyncio.get_running_loop()
        try:
            yield
        finally:
            await end_tasks((following,))
            await self.upstream.aclose()
            await self.streams.close()
            await blocking.aclose()

    def let_readers_go(self) -> None:
        """End all readers, who may come back elsewhere. May be called from another thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.hub.close)

    def overview(self) -> dict[str, Any]:
        """The pool as it was last seen, for people."""
        return {**self._overview().to_dict(), "redis_reachable": self._status()["redis_reachable"]}

    def status(self) -> dict[str, Any]:
        """What is known without asking Redis."""
        return {
            **self._status(),
            "http": {
                "readers": self.readers.total,
                "requests": self.requests.total,
                "opened_streams": self.open_streams.total,
            },
        }

    async def open(self, tenant: str, stream: str, fields: Fields) -> str:
        """Write an open within the tenant's limit; its ingress id. Raises LimitReached or Problem."""
        if self.open_streams.full(tenant, stream):
            names = self.open_streams.to_prune(tenant)
            if names:
                self.open_streams.prune(tenant, await self.streams.states(tenant, names))
            if self.open_streams.full(tenant, stream):
                raise LimitReached("open streams", self.open_streams.limit)
        # Counted before it is written, or a burst would pass the limit while Redis answers.
        self.open_streams.add(tenant, stream)
        try:
            return await self.streams.enqueue(tenant, fields)
        except Problem:
            self.open_streams.discard(tenant, stream)
            raise
