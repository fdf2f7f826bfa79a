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
from stream2llm.keys import DEFAULT_TENANT, TENANT_PATTERN, PoolKeys
from stream2llm_router.fleet import Fleet
from stream2llm_router.holding import LOG_LIVE_MS, MAX_HELD_STREAMS, Holding, held_key
from stream2llm_router.judging import Verdict, judge, refused_as_internal
from stream2llm_router.leasing import Leases
from stream2llm_router.metrics import RouterMetrics
from stream2llm_router.scripts import Fenced, Scripts, Stale

logger = logging.getLogger(__name__)

LIVE_MS = settings.MAX_TIMEOUT_MS + 3_600_000
"""Expiry of a stream in use: above the longest time that it may be silent, so that only what is forgotten expires."""
REFRESH_S = 0.25
MAX_TOLD_ERRORS = 1_000
"""Errors about single entries that one reply may hold."""
PAUSE_S = 1.0
"""How long a tenant whose keys or scripts fail is left alone, so that the others are served."""
INTERNAL_AFTER_FAILURES = 3
"""An entry that the script has failed on this often, alone in its batch, is turned away."""

MAX_READ_BYTES = 4 << 20
"""A read that brought more than this of one tenant makes the next one ask for fewer entries."""

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
        self._bad_tenants: list[str] = []
        self._waiting: dict[str, int] = {}
        self._lag: dict[str, int] = {}
        self._epochs: dict[str, str] = {}
        self._refresh_at_s = 0.0
        self._read_entries = settings.MAX_BATCH_ENTRIES
        self._resume_at_s: dict[str, float] = {}
        self._failures: dict[str, int] = {}
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
                self._refresh_at_s = 0.0
                stop.wait(delay_s)
            except Exception:
                # A bug must not stop the other tenants; it is loud, and it is slowed down.
                logger.exception("forwarding failed")
                stop.wait(1.0)
        try:
            self.leases.release_all()
        except (RedisError, OSError) as error:
            logger.info("leases not given back: %s", error)

    def status(self) -> dict[str, Any]:
        """What is known without asking Redis, so that the answer never waits for it."""
        return {
            "pool": self._keys.pool,
            "router": self.leases.router,
            "redis_reachable": self.reachable,
            "open_streams": sum(pod.open_streams for pod in self._fleet.pods) + sum(self._waiting.values()),
            "waiting_streams": sum(self._waiting.values()),
            "tenants": {
                tenant: {"held": tenant in self._epochs, "lag_entries": self._lag.get(tenant, 0)}
                for tenant in list(self._tenants)
            },
            "pods": {pod.name: {"state": pod.state, "open_streams": pod.open_streams} for pod in self._fleet.pods},
        }

    def turn(self) -> int:
        """One round: leases, held streams, one read of all tenants. Returns how many entries were read."""
        self._refresh()
        self._epochs = self._hold_leases()
        for tenant, epoch in list(self._epochs.items()):
            if self._waiting.get(tenant):
                self._guarded(tenant, self._holding.serve, tenant, epoch)
        now_s = time.monotonic()
        served = [tenant for tenant in self._epochs if self._resume_at_s.get(tenant, 0.0) <= now_s]
        if not served:
            time.sleep(self._block_ms / 1000 / 4)
            return 0
        queues = self._read(served)
        for tenant, entries in queues.items():
            self._guarded(tenant, self._forward_all, tenant, entries)
        return sum(len(entries) for entries in queues.values())

    def _guarded(self, tenant: str, action: Callable[..., None], *arguments: Any) -> None:
        """Keep one tenant's trouble from the others; an outage of Redis is everybody's and goes on up."""
        try:
            action(*arguments)
        except Fenced:
            logger.warning("the lease of tenant %s is another router's", tenant)
            self.leases.drop(tenant)
            self._epochs.pop(tenant, None)
        except ResponseError as error:
            self._failures[tenant] = self._failures.get(tenant, 0) + 1
            self._resume_at_s[tenant] = time.monotonic() + PAUSE_S
            logger.error("tenant %s pauses for %.0f s: %s", tenant, PAUSE_S, error)

    def _refresh(self) -> None:
        now_s = time.monotonic()
        if now_s < self._refresh_at_s:
            return
        self._fleet.refresh()
        members: Any = self._client.smembers(self._keys.tenants)
        names = sorted(raw.decode("utf-8", "replace") for raw in members)
        bad = [name for name in names if not TENANT_PATTERN.fullmatch(name)]
        if bad != self._bad_tenants:
            logger.error("tenants %s are no valid names and are not served", bad)
            self._bad_tenants = bad
        tenants = [name for name in names if name not in bad] or [DEFAULT_TENANT]
        for gone in set(self._tenants) - set(tenants):
            self._metrics.forget_tenant(gone)
            self._lag.pop(gone, None)
            self._waiting.pop(gone, None)
        self._tenants = tenants
        self._measure()
        self._refresh_at_s = now_s + REFRESH_S

    def _measure(self) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for tenant in self._tenants:
            pipeline.xlen(self._keys.ingress(tenant))
            pipeline.zcard(held_key(self._keys, tenant))
        answers: list[Any] = pipeline.execute(raise_on_error=False)
        for tenant, lag, waiting in zip(self._tenants, answers[::2], answers[1::2], strict=True):
            for answer in (lag, waiting):
                if isinstance(answer, ResponseError):
                    # One read covers all tenants, so a foreign key type must be kept out of it.
                    self._resume_at_s[tenant] = time.monotonic() + PAUSE_S
                    logger.error("tenant %s pauses for %.0f s: a key of its has a foreign type", tenant, PAUSE_S)
                elif isinstance(answer, Exception):
                    raise answer
            self._lag[tenant] = lag if isinstance(lag, int) else 0
            self._waiting[tenant] = waiting if isinstance(waiting, int) else 0
            self._metrics.lag(tenant, self._lag[tenant])
        self._metrics.waiting_streams.set(sum(self._waiting.values()))

    def _hold_leases(self) -> dict[str, str]:
        epochs = {}
        for tenant in self._tenants:
            try:
                epoch = self.leases.hold(tenant)
            except ResponseError as error:
                logger.error("the lease of tenant %s cannot be taken: %s", tenant, error)
                self._resume_at_s[tenant] = time.monotonic() + PAUSE_S
                continue
            if epoch is not None:
                epochs[tenant] = epoch
        return epochs

    def _read(self, tenants: list[str]) -> dict[str, list[RawEntry]]:
        by_key = {self._keys.ingress(tenant).encode(): tenant for tenant in tenants}
        waiting = any(self._waiting.get(tenant) for tenant in tenants)
        block_ms = min(self._block_ms, int(REFRESH_S * 1000)) if waiting else self._block_ms
        answer: Any = self._client.xread(
            {key.decode(): "0" for key in by_key}, count=self._read_entries, block=block_ms
        )
        queues: dict[str, list[RawEntry]] = {by_key[key]: entries for key, entries in answer or ()}
        if answer is not None and queues:
            # Big entries are read few at a time: XREAD can be bounded by number only.
            most = max(_size_bytes(entries) for entries in queues.values())
            fewer = most > MAX_READ_BYTES
            wanted = self._read_entries // 4 if fewer else self._read_entries * 2
            self._read_entries = max(1, min(wanted, settings.MAX_BATCH_ENTRIES))
        return queues

    def _forward_all(self, tenant: str, entries: list[RawEntry]) -> None:
        """Forward what was read, a batch at a time, until there is no more or it turns out to be stale."""
        while entries:
            batch = entries[:1] if self._failures.get(tenant) else _cut(entries)
            entries = entries[len(batch) :]
            try:
                self._forward(tenant, batch)
            except Stale:
                # A retry after a lost answer met its own success, or the head was trimmed: read again.
                return
            self._failures.pop(tenant, None)

    def _forward(self, tenant: str, entries: list[RawEntry]) -> None:
        started_s = time.perf_counter()
        verdicts = [self._judge(tenant, fields) for _, fields in entries]
        arguments: list[Any] = [
            self._epochs[tenant],
            self._keys.prefix,
            tenant,
            self._retain_ms,
            LIVE_MS,
            LOG_LIVE_MS,
            settings.MAX_STREAM_BYTES,
            MAX_HELD_STREAMS,
            settings.MAX_REJECTED,
            MAX_TOLD_ERRORS,
            len(entries),
        ]
        for (identifier, _), verdict in zip(entries, verdicts, strict=True):
            arguments += [identifier, *self._told(verdict)]
        answer = self._scripts.call("forward", [self._keys.lease(tenant), self._keys.ingress(tenant)], arguments)
        self._metrics.forward_seconds.observe(time.perf_counter() - started_s)
        forwarded, assigned, held, _ignored = map(int, answer[:4])
        self._metrics.forwarded_entries.inc(forwarded)
        self._metrics.assigned("open", assigned)
        if held:
            self._waiting[tenant] = self._waiting.get(tenant, 0) + held
        for code in answer[4:]:
            self._metrics.rejected(code.decode())

    def _judge(self, tenant: str, fields: dict[bytes, bytes]) -> Verdict:
        if self._failures.get(tenant, 0) >= INTERNAL_AFTER_FAILURES:
            return refused_as_internal(fields)
        return judge(fields)

    def _told(self, verdict: Verdict) -> list[str]:
        pod = self._fleet.choose(verdict.model) if verdict.op == "open" and not verdict.code else None
        return [
            verdict.op,
            verdict.stream,
            verdict.digest,
            pod.name if pod else "",
            pod.incarnation if pod else "",
            verdict.code,
            verdict.message,
            verdict.field,
        ]


def _size_bytes(entries: list[RawEntry]) -> int:
    return sum(len(name) + len(value) for _, fields in entries for name, value in fields.items())


def _cut(entries: list[RawEntry]) -> list[RawEntry]:
    """The head of the batch, up to both limits; always at least one entry."""
    size_bytes = 0
    kept: list[RawEntry] = []
    for entry in entries[: settings.MAX_BATCH_ENTRIES]:
        size_bytes += _size_bytes([entry])
        if kept and size_bytes > settings.MAX_BATCH_BYTES:
            break
        kept.append(entry)
    return kept


def _backoff() -> Iterator[float]:
    delay_s = 0.05
    while True:
        yield delay_s
        delay_s = min(delay_s * 2, 2.0)
