"""The forwarding loop: ingress is a queue, read from its head and emptied by one fenced script per batch."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import redis
from redis.exceptions import RedisError, ResponseError

from stream2llm import settings
from stream2llm.errors import ErrorCode
from stream2llm.keys import DEFAULT_TENANT, TENANT_PATTERN, PoolKeys
from stream2llm_router.fleet import Fleet
from stream2llm_router.holding import Holding
from stream2llm_router.judging import Verdict, judge
from stream2llm_router.leasing import Leases
from stream2llm_router.metrics import RouterMetrics
from stream2llm_router.scripts import Fenced, Scripts, Stale

logger = logging.getLogger(__name__)

LIVE_MS = settings.MAX_TIMEOUT_MS + 3_600_000
"""Expiry of a stream in use: above the longest time that it may be silent, so that only what is forgotten expires."""
REFRESH_S = 0.25
_ERROR_CODES = {str(code) for code in ErrorCode}

RawEntry = tuple[bytes, dict[bytes, bytes]]


class Forwarder:
    """Serves all tenants of one pool from one thread."""

    def __init__(
        self,
        client: redis.Redis,
        keys: PoolKeys,
        metrics: RouterMetrics,
        *,
        retain_s: int = settings.RETAIN_S,
        open_wait_ms: int = settings.OPEN_WAIT_MS,
        block_ms: int = settings.BLOCK_MS,
    ) -> None:
        self._client, self._keys, self._metrics = client, keys, metrics
        self._retain_ms, self._block_ms = retain_s * 1000, block_ms
        self._scripts = Scripts(client)
        self._fleet = Fleet(client, keys)
        self.leases = Leases(self._scripts, keys)
        self._holding = Holding(client, self._scripts, keys, self._fleet, metrics, self._retain_ms, open_wait_ms)
        self._tenants: list[str] = []
        self._served: set[str] = set()
        self._refresh_at_s = 0.0
        self.reachable = False

    def run(self, stop: threading.Event) -> None:
        """Forward until `stop` is set. An outage of Redis is waited out; nothing a tenant sends ends this."""
        delays = _backoff()
        while not stop.is_set():
            try:
                self.turn()
                self.reachable = True
                delays = _backoff()
            except (RedisError, OSError) as error:
                delay_s = next(delays)
                log = logger.warning if self.reachable or delay_s >= 2 else logger.info
                log("Redis: %s; trying again in %.1f s", error, delay_s)
                self.reachable = False
                stop.wait(delay_s)
            except Exception:
                # A bug must not stop the other tenants; it is loud, and it is slowed down.
                logger.exception("forwarding failed")
                stop.wait(1.0)
        try:
            self.leases.release_all()
        except (RedisError, OSError) as error:
            logger.info("leases not given back: %s", error)

    def turn(self) -> int:
        """One round: leases, held streams, one batch of each tenant. Returns how many entries were read."""
        self._refresh()
        epochs = self._hold_leases()
        for tenant, epoch in epochs.items():
            self._guarded(tenant, self._holding.serve, tenant, epoch)
        self._metrics.waiting_streams.set(len(self._holding))
        if not epochs:
            time.sleep(self._block_ms / 1000 / 4)
            return 0
        batches = self._read(list(epochs))
        for tenant, entries in batches.items():
            self._guarded(tenant, self._forward, tenant, epochs[tenant], entries)
        return sum(len(entries) for entries in batches.values())

    def _guarded(self, tenant: str, action: Callable[..., None], *arguments: Any) -> None:
        try:
            action(*arguments)
        except Fenced:
            logger.warning("the lease of tenant %s is another router's", tenant)
            self.leases.drop(tenant)
            self._served.discard(tenant)
            self._holding.forget(tenant)

    def _refresh(self) -> None:
        now_s = time.monotonic()
        if now_s < self._refresh_at_s:
            return
        self._fleet.refresh()
        members: Any = self._client.smembers(self._keys.tenants)
        names = sorted(raw.decode("utf-8", "replace") for raw in members)
        bad = [name for name in names if not TENANT_PATTERN.fullmatch(name)]
        if bad:
            logger.error("tenants %s are no valid names and are not served", bad)
        self._tenants = [name for name in names if name not in bad] or [DEFAULT_TENANT]
        for tenant in self._tenants:
            self._metrics.lag(tenant, self._length(tenant))
        self._refresh_at_s = now_s + REFRESH_S

    def _length(self, tenant: str) -> int:
        try:
            return int(self._client.xlen(self._keys.ingress(tenant)))
        except ResponseError as error:
            logger.error("ingress of tenant %s is no stream: %s", tenant, error)
            return 0

    def _hold_leases(self) -> dict[str, str]:
        epochs = {}
        for tenant in self._tenants:
            epoch = self.leases.hold(tenant)
            if epoch is None:
                self._served.discard(tenant)
                self._holding.forget(tenant)
                continue
            epochs[tenant] = epoch
            if tenant not in self._served:
                self._holding.find(tenant)
                self._served.add(tenant)
        return epochs

    def _read(self, tenants: list[str]) -> dict[str, list[RawEntry]]:
        by_key = {self._keys.ingress(tenant).encode(): tenant for tenant in tenants}
        block_ms = min(self._block_ms, int(REFRESH_S * 1000)) if len(self._holding) else self._block_ms
        answer: Any = self._client.xread(
            {key.decode(): "0" for key in by_key}, count=settings.MAX_BATCH_ENTRIES, block=block_ms
        )
        return {by_key[key]: _cut(entries) for key, entries in answer or ()}

    def _forward(self, tenant: str, epoch: str, entries: list[RawEntry]) -> None:
        started_s = time.perf_counter()
        verdicts = [judge(fields) for _, fields in entries]
        arguments: list[Any] = [
            epoch,
            self._keys.prefix,
            tenant,
            self._retain_ms,
            LIVE_MS,
            settings.MAX_STREAM_BYTES,
            settings.MAX_REJECTED,
        ]
        for (identifier, _), verdict in zip(entries, verdicts, strict=True):
            arguments += [identifier, *self._told(verdict)]
        try:
            answer = self._scripts.call("forward", [self._keys.lease(tenant), self._keys.ingress(tenant)], arguments)
        except Stale:
            # A retry after a lost answer met its own success, or the head was trimmed: read again.
            return
        self._metrics.forward_seconds.observe(time.perf_counter() - started_s)
        self._metrics.forwarded_entries.inc(int(answer[0]))
        words = [word.decode() for word in answer[1:]]
        for word in words:
            if word in _ERROR_CODES:
                self._metrics.rejected(word)
        self._note_opens(tenant, entries, verdicts, held="held" in words)

    def _told(self, verdict: Verdict) -> list[str | int]:
        pod = self._fleet.choose() if verdict.op == "open" else None
        return [
            verdict.op,
            verdict.stream,
            verdict.size_bytes,
            verdict.digest,
            pod.name if pod else "",
            pod.incarnation if pod else "",
            verdict.code,
            verdict.message,
            verdict.field,
        ]

    def _note_opens(self, tenant: str, entries: list[RawEntry], verdicts: list[Verdict], *, held: bool) -> None:
        opens = [
            (identifier, verdict.stream)
            for (identifier, _), verdict in zip(entries, verdicts, strict=True)
            if verdict.op == "open"
        ]
        if not held:
            self._metrics.assigned("open", len(opens))
            return
        for identifier, stream in opens:
            if self._client.hget(self._keys.route(tenant, stream), "state") == b"held":
                self._holding.add(tenant, stream, int(identifier.split(b"-")[0]))


def _cut(entries: list[RawEntry]) -> list[RawEntry]:
    """The head of the batch, up to the byte limit; always at least one entry."""
    size_bytes = 0
    kept: list[RawEntry] = []
    for entry in entries:
        size_bytes += sum(len(value) for value in entry[1].values())
        if kept and size_bytes > settings.MAX_BATCH_BYTES:
            break
        kept.append(entry)
    return kept


def _backoff() -> Iterator[float]:
    delay_s = 0.05
    while True:
        yield delay_s
        delay_s = min(delay_s * 2, 2.0)
