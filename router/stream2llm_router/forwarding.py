"""The forwarding loop: ingress is a queue, read from its head and emptied by one fenced script per batch."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import redis
from redis.exceptions import RedisError, ResponseError

from stream2llm import settings
from stream2llm.connecting import explained
from stream2llm.entries import DEFAULT_RULES, EntryRules
from stream2llm.keys import DEFAULT_TENANT, TENANT_PATTERN, PoolKeys
from stream2llm.overview.reading import Overview, TenantView
from stream2llm.retrying import passes
from stream2llm.tenant_limits import TenantLimits, read_limits
from stream2llm.tracing.recording import Tracer
from stream2llm_router.assigning import Needs
from stream2llm_router.declaring import Declaration
from stream2llm_router.fairness import Turns
from stream2llm_router.fleet import Fleet
from stream2llm_router.holding import MAX_HELD_STREAMS, Holding
from stream2llm_router.judging import Verdict, judge, refused_as_internal
from stream2llm_router.leasing import Leases
from stream2llm_router.metrics import RouterMetrics
from stream2llm_router.placing import LOG_LIVE_MS, TOKEN_BYTES, Placing
from stream2llm_router.recovering import Recovery
from stream2llm_router.scripts import Fenced, Scripts, Stale
from stream2llm_router.tracing import record_opens
from stream2llm_router.trimming import Trimming

logger = logging.getLogger(__name__)

REFRESH_S = 0.25
MAX_TOLD_ERRORS = 1_000
"""Errors about single entries that one reply may hold."""
PAUSE_S = 1.0
"""How long a tenant whose keys or scripts fail is left alone, so that the others are served."""
INTERNAL_AFTER_FAILURES = 3
"""An entry that the script has failed on this often, alone in its batch, is turned away."""

MAX_READ_ENTRIES = 4 * settings.MAX_BATCH_ENTRIES
"""Entries of one tenant that one read brings."""
MAX_READ_BYTES = 4 << 20
"""A read that brought more than this of one tenant makes the next one ask for fewer entries."""

RawEntry = tuple[bytes, dict[bytes, bytes]]


class Queue:
    """What was read of one tenant's ingress and is not forwarded yet."""

    def __init__(self, entries: list[RawEntry]) -> None:
        self.entries = entries
        self._sizes_bytes = [sum(map(len, fields)) + sum(map(len, fields.values())) for _, fields in entries]
        self._next = 0

    @property
    def size_bytes(self) -> int:
        """Of all that was read."""
        return sum(self._sizes_bytes)

    def __bool__(self) -> bool:
        return self._next < len(self.entries)

    def take(self, max_entries: int) -> tuple[list[RawEntry], int]:
        """The next batch, of at least one entry, and its bytes."""
        first, self._next, size_bytes = self._next, *self._end_of_batch(max_entries)
        return self.entries[first : self._next], size_bytes

    def ahead(self) -> list[RawEntry]:
        """The batch after the last one that was taken; it stays where it is."""
        return self.entries[self._next : self._end_of_batch(settings.MAX_BATCH_ENTRIES)[0]]

    def _end_of_batch(self, max_entries: int) -> tuple[int, int]:
        """Where a batch that begins here ends, by number and by bytes, and its bytes."""
        total_bytes = 0
        most = min(self._next + max_entries, len(self.entries))
        for i in range(self._next, most):
            size_bytes = self._sizes_bytes[i]
            if i > self._next and total_bytes + size_bytes > settings.MAX_BATCH_BYTES:
                return i, total_bytes
            total_bytes += size_bytes
        return most, total_bytes


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
        start_wait_ms: int = settings.OPEN_WAIT_MS,
        block_ms: int = settings.BLOCK_MS,
        declaration: Declaration | None = None,
        rules: EntryRules = DEFAULT_RULES,
        tracer: Tracer | None = None,
    ) -> None:
        """declaration: the file that says which tenants there are, where there is one; tracer: None for none."""
        self._client, self._keys, self._metrics = client, keys, metrics
        self._retain_ms, self._block_ms = retain_s * 1000, block_ms
        self._declaration, self._rules, self._tracer = declaration, rules, tracer
        self._scripts = Scripts(client)
        self._fleet = Fleet(client, keys)
        self.leases = Leases(self._scripts, keys)
        placing = Placing(client, self._scripts, keys, self._fleet, metrics, self._retain_ms)
        self._holding = Holding(client, keys, self._fleet, placing, metrics, open_wait_ms, start_wait_ms)
        self._recovery = Recovery(client, self._scripts, keys, self._fleet, placing)
        self._trimming = Trimming(client, keys, metrics)
        self._turns = Turns()
        self._limits: dict[str, TenantLimits] = {}
        self._weights: dict[str, float] = {}
        self._bad_limits: dict[str, list[str]] = {}
        self._tenants: list[str] = []
        self._bad_tenants: list[str] = []
        self._waiting: dict[str, int] = {}
        self._lag: dict[str, int] = {}
        self._epochs: dict[str, str] = {}
        self._refresh_at_s = 0.0
        self._read_entries = self._last_read_entries = settings.MAX_BATCH_ENTRIES
        self._resume_at_s: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._judged: dict[tuple[str, bytes], Verdict] = {}
        self.reachable: bool | None = None
        """Whether Redis answers; None before it was asked."""

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
                log("Redis: %s; trying again in %.1f s", explained(error), delay_s)
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
            "waiting_for": sorted(self._holding.lacks),
            "tenants": {
                tenant: {"held": tenant in self._epochs, "lag_entries": self._lag.get(tenant, 0)}
                for tenant in list(self._tenants)
            },
            "pods": {pod.name: {"state": pod.state, "open_streams": pod.open_streams} for pod in self._fleet.pods},
        }

    def overview(self) -> Overview:
        """The pool as it was last seen, without asking Redis."""
        tenants = tuple(
            TenantView(tenant, self._lag.get(tenant, 0), self._waiting.get(tenant, 0))
            for tenant in sorted(self._tenants)
        )
        return Overview(self._keys.pool, self._fleet.now_ms, self._fleet.views(), tenants)

    def weight(self, tenant: str) -> float:
        """The tenant's weight, as last read; without asking Redis, and from any thread."""
        return self._weights.get(tenant, 1.0)

    def turn(self) -> int:
        """One round: leases, held streams, one read of all tenants. Returns how many entries were read."""
        fresh = self._refresh()
        self._epochs = self.leases.hold(self._tenants)
        for tenant in self._tenants:
            if (epoch := self._epochs.get(tenant)) is not None and self._waiting.get(tenant):
                self._guarded(tenant, self._holding.serve, tenant, epoch)
            else:
                self._holding.nobody_waits(tenant)
        if fresh:
            self._recover()
        now_s = time.monotonic()
        served = [tenant for tenant in self._epochs if self._resume_at_s.get(tenant, 0.0) <= now_s]
        if not served:
            time.sleep(self._block_ms / 1000 / 4)
            return 0
        queues = self._read(served)
        count = sum(len(queue.entries) for queue in queues.values())
        full = {tenant for tenant, queue in queues.items() if len(queue.entries) >= self._last_read_entries}
        while queues:
            tenant = self._turns.next(queues)
            self._guarded(tenant, self._forward_some, tenant, queues)
            if tenant not in queues and tenant in full:
                # It may have more, and its turn may come before that of what others still have here: read again.
                break
        return count

    def _recover(self) -> None:
        """Move streams off pods that are gone or leave."""
        self._recovery.declare_gone()
        for tenant, epoch in list(self._epochs.items()):
            self._guarded(tenant, self._recovery.serve, tenant, epoch)
            self._guarded(tenant, self._trimming.look, tenant)
        self._recovery.settle()

    def _guarded(self, tenant: str, action: Callable[..., None], *arguments: Any) -> None:
        """Keep one tenant's trouble from the others; an outage of Redis is everybody's and goes on up."""
        try:
            action(*arguments)
        except Fenced:
            logger.warning("the lease of tenant %s is another router's", tenant)
            self.leases.drop(tenant)
            self._epochs.pop(tenant, None)
        except ResponseError as error:
            if not passes(error):
                # Else it is no fault of the entry, which must not be turned away for it.
                self._failures[tenant] = self._failures.get(tenant, 0) + 1
            self._resume_at_s[tenant] = time.monotonic() + PAUSE_S
            logger.error("tenant %s pauses for %.0f s: %s", tenant, PAUSE_S, error)

    def _refresh(self) -> bool:
        """Look at pods, tenants and lengths again, unless that has just been done."""
        now_s = time.monotonic()
        if now_s < self._refresh_at_s:
            return False
        self._fleet.refresh()
        if self._declaration is not None:
            self._declaration.keep()
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
            self._bad_limits.pop(gone, None)
            self._holding.nobody_waits(gone)
        self._tenants = tenants
        self._turns.keep(tenants)
        self._measure()
        self._refresh_at_s = now_s + REFRESH_S
        return True

    def _measure(self) -> None:
        """Lengths of ingress and of the waiting streams, and the tenants' limits."""
        pipeline = self._client.pipeline(transaction=False)
        for tenant in self._tenants:
            pipeline.xlen(self._keys.ingress(tenant))
            pipeline.zcard(self._keys.held(tenant))
            pipeline.hgetall(self._keys.limits(tenant))
        answers: list[Any] = pipeline.execute(raise_on_error=False)
        for tenant, lag, waiting, limits in zip(self._tenants, answers[::3], answers[1::3], answers[2::3], strict=True):
            for answer in (lag, waiting, limits):
                if isinstance(answer, ResponseError):
                    # One read covers all tenants, so a foreign key type must be kept out of it.
                    self._resume_at_s[tenant] = time.monotonic() + PAUSE_S
                    logger.error("tenant %s pauses for %.0f s: a key of its has a foreign type", tenant, PAUSE_S)
                elif isinstance(answer, Exception):
                    raise answer
            self._lag[tenant] = lag if isinstance(lag, int) else 0
            self._waiting[tenant] = waiting if isinstance(waiting, int) else 0
            self._metrics.lag(tenant, self._lag[tenant])
            self._note_limits(tenant, limits if isinstance(limits, dict) else {})
        self._metrics.waiting_streams.set(sum(self._waiting.values()))

    def _note_limits(self, tenant: str, raw: dict[bytes, bytes]) -> None:
        self._limits[tenant], wrong = read_limits(raw)
        self._weights[tenant] = self._limits[tenant].weight
        if wrong != self._bad_limits.get(tenant, []):
            self._bad_limits[tenant] = wrong
            if wrong:
                logger.error("limits of tenant %s that cannot be read count as absent: %s", tenant, ", ".join(wrong))

    def _read(self, tenants: list[str]) -> dict[str, Queue]:
        by_key = {self._keys.ingress(tenant).encode(): tenant for tenant in tenants}
        waiting = any(self._waiting.get(tenant) for tenant in tenants)
        block_ms = min(self._block_ms, int(REFRESH_S * 1000)) if waiting else self._block_ms
        self._last_read_entries = self._read_entries
        answer: Any = self._client.xread(
            {key.decode(): "0" for key in by_key}, count=self._read_entries, block=block_ms
        )
        self._judged.clear()
        queues = {by_key[key]: Queue(entries) for key, entries in answer or ()}
        if queues:
            # Big entries are read few at a time: XREAD can be bounded by number only.
            fewer = max(queue.size_bytes for queue in queues.values()) > MAX_READ_BYTES
            wanted = self._read_entries // 4 if fewer else self._read_entries * 2
            self._read_entries = max(1, min(wanted, MAX_READ_ENTRIES))
        return queues

    def _forward_some(self, tenant: str, queues: dict[str, Queue]) -> None:
        """Forward one batch of what was read; a tenant that is done for now leaves `queues`."""
        queue = queues.pop(tenant)
        failing = bool(self._failures.get(tenant))
        batch, size_bytes = queue.take(1 if failing else settings.MAX_BATCH_ENTRIES)
        self._turns.charge(tenant, size_bytes, len(batch), self._weights)
        try:
            self._forward(tenant, batch, () if failing else queue.ahead())
        except Stale:
            # A retry after a lost answer met its own success, or the head was trimmed: read again.
            return
        self._failures.pop(tenant, None)
        if queue:
            queues[tenant] = queue

    def _forward(self, tenant: str, entries: list[RawEntry], ahead: Sequence[RawEntry] = ()) -> None:
        """Forward one batch. While the server is at work on it, the entries that come next are judged."""
        started_s = time.perf_counter()
        verdicts = [self._judge(tenant, *entry) for entry in entries]
        limits = self._limits.get(tenant, TenantLimits())
        arguments: list[Any] = [
            self._epochs[tenant],
            self._keys.prefix,
            tenant,
            self._retain_ms,
            settings.FORGOTTEN_MS,
            LOG_LIVE_MS,
            settings.MAX_STREAM_BYTES,
            MAX_HELD_STREAMS,
            settings.MAX_REJECTED,
            MAX_TOLD_ERRORS,
            limits.max_open_streams,
            limits.max_open_bytes,
            len(entries),
        ]
        for (identifier, _), verdict in zip(entries, verdicts, strict=True):
            arguments += (identifier, verdict.op, verdict.stream, self._more(tenant, verdict))
        keys = [self._keys.lease(tenant), self._keys.ingress(tenant)]
        if ahead:
            finish = self._scripts.begin("forward", keys, arguments)
            try:
                self._judged = {(tenant, identifier): judge(fields, self._rules) for identifier, fields in ahead}
            finally:
                answer = finish()
        else:
            answer = self._scripts.call("forward", keys, arguments)
        self._metrics.forward_seconds.observe(time.perf_counter() - started_s)
        forwarded, assigned, held, _ignored = map(int, answer[:4])
        self._metrics.forwarded_entries.inc(forwarded)
        self._metrics.assigned("open", assigned)
        if held:
            self._waiting[tenant] = self._waiting.get(tenant, 0) + held
        for code in answer[4:]:
            self._metrics.rejected(code.decode())
        if self._tracer is not None:
            opened = (
                (identifier, fields, verdict) for (identifier, fields), verdict in zip(entries, verdicts, strict=True)
            )
            record_opens(self._tracer, self._keys, tenant, opened, self._fleet.redis_ms())

    def _judge(self, tenant: str, identifier: bytes, fields: dict[bytes, bytes]) -> Verdict:
        if self._failures.get(tenant, 0) >= INTERNAL_AFTER_FAILURES:
            return refused_as_internal(fields)
        return self._judged.pop((tenant, identifier), None) or judge(fields, self._rules)

    def _more(self, tenant: str, verdict: Verdict) -> str:
        """What the script needs to know of an open, or of an entry that is wrong."""
        if verdict.op != "open" and not verdict.code:
            return ""
        pod, affinity = None, ""
        if not verdict.code:
            # The engine keeps the caches of tenants apart.
            affinity = f"{tenant}/{verdict.affinity}" if verdict.affinity else ""
            pod = self._fleet.choose(Needs(verdict.model, "", affinity, verdict.prompt_bytes // TOKEN_BYTES))
        more = {
            "digest": verdict.digest,
            "pod": pod.name if pod else "",
            "incarnation": pod.incarnation if pod else "",
            "model": verdict.model,
            "affinity": affinity,
            "code": verdict.code,
            "message": verdict.message,
            "field": verdict.field,
        }
        return json.dumps(more)


def _backoff() -> Iterator[float]:
    delay_s = 0.05
    while True:
        yield delay_s
        delay_s = min(delay_s * 2, 2.0)
