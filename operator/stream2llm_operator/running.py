"""The process: leadership, watches, workers, health and metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp.web
import kopf
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from stream2llm_operator.handling import make_registry, make_settings
from stream2llm_operator.kube import ApiError, KubeApi
from stream2llm_operator.leasing import RENEW_DEADLINE_S, RETRY_S, LeaseHolder
from stream2llm_operator.metrics import OperatorMetrics
from stream2llm_operator.pool import OperatorSettings
from stream2llm_operator.queueing import Key, WorkQueue
from stream2llm_operator.reconciling import Reconciler
from stream2llm_operator.viewing import IndexView
from stream2llm_operator.watching import WatchAge

logger = logging.getLogger(__name__)

WORKERS = 4
RESYNC_S = 600.0
"""How often every resource is looked at though nothing has happened."""
TEMPORARY = (ApiError, OSError, TimeoutError, aiohttp.ClientError)
"""What goes by without us."""
STUCK_S = 120.0
"""Work that has been due for this long means that workers hang."""
LOOK_S = 30.0
"""How often the watch is compared with a list."""
BLIND_S = 150.0
"""A watch that has been behind for this long brings no events any more."""


@dataclass(frozen=True, slots=True)
class Options:
    """namespaces: those watched, empty for all; lease: namespace of the Lease, empty for no leader election."""

    settings: OperatorSettings
    namespaces: tuple[str, ...] = ()
    lease_namespace: str = ""
    identity: str = ""
    health: tuple[str, int] = ("0.0.0.0", 8081)
    metrics: tuple[str, int] = ("0.0.0.0", 8082)


class OperatorProcess:
    """One process of the operator, leading or standing by."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.registry = CollectorRegistry()
        self.metrics = OperatorMetrics(self.registry)
        self.queue = WorkQueue(now=time.monotonic)
        self.reads_nodes = not options.namespaces
        self.stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._ready = ""
        """Whether it is at work or stands by, empty for neither."""
        self._behind_s = 0.0

    async def run(self) -> None:
        """Until it is told to stop or has lost its lease."""
        await config.load_config()  # type: ignore[no-untyped-call]
        async with ApiClient() as client:
            servers = [
                await _serve(self.options.health, {"/healthz": self._healthz, "/readyz": self._readyz}),
                await _serve(self.options.metrics, {"/metrics": self._metrics}),
            ]
            try:
                if self.options.lease_namespace:
                    await self._lead(client)
                else:
                    await self._operate(client)
            finally:
                for server in servers:
                    await server.cleanup()

    async def _lead(self, client: ApiClient) -> None:
        lease = LeaseHolder(KubeApi(client), self.options.lease_namespace, self.options.identity, time.monotonic)
        told = asyncio.create_task(self.stop.wait())
        operating: asyncio.Task[None] | None = None
        held_at_s = 0.0
        try:
            while not told.done():
                try:
                    async with asyncio.timeout(RENEW_DEADLINE_S / 2):
                        holds = await lease.hold()
                except TEMPORARY as error:
                    logger.warning("the lease cannot be renewed: %s", error)
                    holds = operating is not None and time.monotonic() - held_at_s < RENEW_DEADLINE_S
                else:
                    held_at_s = time.monotonic() if holds else held_at_s
                    if not holds and operating is None:
                        self._ready = "standing by"
                if holds and operating is None:
                    logger.info("holding the lease as %s", self.options.identity)
                    operating = asyncio.create_task(self._operate(client))
                elif operating is not None and not holds:
                    logger.error("the lease is lost; ending, so that nothing is written beside the new leader")
                    break
                waiting = {told, operating} if operating is not None else {told}
                await asyncio.wait(waiting, timeout=RETRY_S, return_when=asyncio.FIRST_COMPLETED)
                if operating is not None and operating.done():
                    break
        finally:
            self.stop.set()
            await told
            if operating is not None:
                await operating
                with suppress(*TEMPORARY):
                    await lease.release()

    async def _operate(self, client: ApiClient) -> None:
        api = KubeApi(client, self.metrics.writes.inc)
        registry = make_registry(self.queue, reads_nodes=self.reads_nodes)

        async def start(**indices: Any) -> None:
            view = IndexView(indices, reads_nodes=self.reads_nodes)
            reconciler = Reconciler(api, view, self.options.settings)
            for _ in range(WORKERS):
                self._tasks.append(asyncio.create_task(self._work(reconciler)))
            self._tasks.append(asyncio.create_task(self._resync(indices)))
            self._tasks.append(asyncio.create_task(self._compare(api, indices)))

        async def end(**_: Any) -> None:
            self._ready = ""
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._tasks.clear()

        kopf.on.startup(registry=registry)(start)
        kopf.on.cleanup(registry=registry)(end)
        kopf.on.login(registry=registry)(_login)
        await kopf.operator(
            registry=registry,
            settings=make_settings(),
            namespaces=list(self.options.namespaces),
            clusterwide=not self.options.namespaces,
            stop_flag=self.stop,
        )

    async def _work(self, reconciler: Reconciler) -> None:
        while True:
            key = await self.queue.get()
            failed, again_s = False, None
            try:
                with self.metrics.reconcile_seconds.time():
                    again_s = await reconciler.reconcile(key)
            except TEMPORARY as error:
                failed = True
                logger.warning("%s/%s: %s; trying again", *key, error)
            except Exception:
                # A bug in one pass must not stop the others.
                failed = True
                logger.exception("%s/%s", *key)
            if failed:
                self.metrics.failures.inc()
            self.queue.done(key, failed=failed, again_s=again_s)

    async def _resync(self, indices: Any) -> None:
        next_resync = time.monotonic() + RESYNC_S
        while True:
            await asyncio.sleep(10)
            resources = indices["resources"]
            keys = list(resources)
            self.metrics.count([body for key in keys for body in resources[key]])
            if time.monotonic() >= next_resync:
                next_resync += RESYNC_S
                for key in keys:
                    self.queue.add(key)

    async def _compare(self, api: KubeApi, indices: Any) -> None:
        """Ready once the API server lets us list what we look after; healthy while the watch keeps up with that."""
        age = WatchAge()
        while True:
            try:
                listed: dict[Key, str] = {}
                for namespace in self.options.namespaces or ("",):
                    listed |= await api.versions(namespace)
            except TEMPORARY as error:
                # Nothing is known of the watch. Whoever restarts us for that helps nobody.
                logger.warning("resources cannot be listed: %s", error)
            else:
                self._ready = "at work"
                resources = indices["resources"]
                watched = {
                    key: body["metadata"]["resourceVersion"] for key in list(resources) for body in resources[key]
                }
                self._behind_s = age.observe(listed, watched, time.monotonic())
            await asyncio.sleep(LOOK_S if self._ready else RETRY_S)

    async def _healthz(self, _: aiohttp.web.Request) -> aiohttp.web.Response:
        lag_s = self.queue.lag_s()
        dead = [task for task in self._tasks if task.done()]
        if lag_s > STUCK_S or self._behind_s > BLIND_S or dead:
            text = f"work has waited {lag_s:.0f} s; watch behind for {self._behind_s:.0f} s; {len(dead)} tasks ended\n"
            return aiohttp.web.Response(status=503, text=text)
        return aiohttp.web.Response(text="ok\n")

    async def _readyz(self, _: aiohttp.web.Request) -> aiohttp.web.Response:
        """So that whoever waits for a rollout, such as `helm --wait`, waits until resources are looked after."""
        if self._ready:
            return aiohttp.web.Response(text=f"{self._ready}\n")
        return aiohttp.web.Response(status=503, text="starting\n")

    async def _metrics(self, _: aiohttp.web.Request) -> aiohttp.web.Response:
        return aiohttp.web.Response(body=generate_latest(self.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


Handler = Callable[[aiohttp.web.Request], Any]


async def _serve(address: tuple[str, int], paths: dict[str, Handler]) -> aiohttp.web.AppRunner:
    app = aiohttp.web.Application()
    for path, handler in paths.items():
        app.router.add_get(path, handler)
    runner = aiohttp.web.AppRunner(app, access_log=None)
    await runner.setup()
    await aiohttp.web.TCPSite(runner, *address).start()
    return runner
