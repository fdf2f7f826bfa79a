"""Gives a stream that is there already to a pod: one that is held, or one whose pod is gone or leaves."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis

from stream2llm import logs
from stream2llm.events import Done, ErrorEvent, encode
from stream2llm.keys import PoolKeys
from stream2llm_router.assigning import Needs
from stream2llm_router.fleet import Fleet
from stream2llm_router.metrics import RouterMetrics
from stream2llm_router.scripts import Ended, Scripts, Stale, Unfit

logger = logging.getLogger(__name__)

LOG_LIVE_MS = 3_600_000
"""A pod log that the router had to make anew, as its pod has just gone, expires after this."""
MAX_ATTEMPTS = 3
"""Pods that may go down with a stream on them; the next one might be the stream's doing too."""
PROBATION_MS = 5_000
"""A stream on its last attempt shares its pod with no other such stream for this long."""
TOKEN_BYTES = 4
"""Bytes of text per token, roughly; for predictions only."""

_ROUTE_FIELDS = (
    "state", "attempt", "pod", "incarnation", "next_token", "fingerprint", "failures", "model", "affinity", "bytes",
    "cancelled",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Route:
    """What placing needs to know of a stream's route."""

    state: str
    attempt: int
    pod: str
    incarnation: str
    next_token: int
    fingerprint: str
    failures: int
    model: str
    affinity: str
    size_bytes: int
    cancelled: bool = False

    def needs(self) -> Needs:
        return Needs(
            self.model,
            self.fingerprint if self.next_token else "",
            self.affinity,
            self.size_bytes // TOKEN_BYTES + self.next_token,
        )


class Placing:
    """Reads routes and carries out what becomes of them. All methods may raise Fenced."""

    def __init__(
        self,
        client: redis.Redis,
        scripts: Scripts,
        keys: PoolKeys,
        fleet: Fleet,
        metrics: RouterMetrics,
        retain_ms: int,
    ) -> None:
        self._client, self._scripts, self._keys = client, scripts, keys
        self._fleet, self._metrics, self._retain_ms = fleet, metrics, retain_ms

    def routes(self, tenant: str, streams: Sequence[str]) -> list[Route | None]:
        """The routes of the tenant's streams; None for one that is not there."""
        pipeline = self._client.pipeline(transaction=False)
        for stream in streams:
            pipeline.hmget(self._keys.route(tenant, stream), *_ROUTE_FIELDS)
        answers: list[Any] = pipeline.execute(raise_on_error=False)
        return [_route(answer) for answer in answers]

    def place(self, tenant: str, epoch: str, stream: str, route: Route, reason: str) -> bool:
        """Give the stream to the best pod; False if no pod can take it."""
        pod = self._fleet.choose(route.needs())
        if pod is None:
            return False
        try:
            self._assign(tenant, epoch, stream, route.attempt, pod.name, pod.incarnation)
        except Unfit:
            return False
        except (Ended, Stale) as error:
            logger.debug(
                "stream %s/%s was settled elsewhere: %s", tenant, stream, error, extra=logs.about(tenant, stream)
            )
            return True
        self._metrics.assigned(reason)
        if route.attempt:
            self._metrics.adopted_streams.inc()
            logger.info(
                *("stream %s/%s goes on at pod %s (%s)", tenant, stream, pod.name, reason),
                extra=logs.about(tenant, stream),
            )
        return True

    def hold(self, tenant: str, epoch: str, stream: str, route: Route) -> None:
        """Take the stream from its pod, which is gone, and let it wait."""
        try:
            self._assign(tenant, epoch, stream, route.attempt, "", "")
        except (Ended, Stale) as error:
            logger.debug(
                "stream %s/%s was settled elsewhere: %s", tenant, stream, error, extra=logs.about(tenant, stream)
            )

    def end(self, tenant: str, epoch: str, stream: str, route: Route, event: ErrorEvent | Done) -> None:
        """Write the terminal event, if the stream has not moved on since its route was read."""
        fields = encode(event)
        keys = self._keys
        try:
            self._scripts.call(
                "end",
                [
                    keys.lease(tenant),
                    keys.route(tenant, stream),
                    keys.reply(tenant, stream),
                    keys.entries(tenant, stream),
                    keys.held(tenant),
                    keys.usage(tenant),
                ],
                [epoch, keys.prefix, tenant, stream, route.attempt, self._retain_ms, fields["event"], fields["data"]],
            )
        except (Ended, Stale) as error:
            logger.debug(
                "stream %s/%s was settled elsewhere: %s", tenant, stream, error, extra=logs.about(tenant, stream)
            )
            return
        if isinstance(event, ErrorEvent):
            self._metrics.rejected(event.code)
            logger.info(
                "stream %s/%s ended without a pod: %s", tenant, stream, event.code, extra=logs.about(tenant, stream)
            )

    def _assign(self, tenant: str, epoch: str, stream: str, attempt: int, pod: str, incarnation: str) -> None:
        keys = [self._keys.lease(tenant), self._keys.route(tenant, stream), self._keys.held(tenant)]
        arguments = [epoch, self._keys.prefix, tenant, stream, attempt, pod, incarnation]
        self._scripts.call("assign", keys, [*arguments, LOG_LIVE_MS, MAX_ATTEMPTS - 1, PROBATION_MS])


def _route(answer: Any) -> Route | None:
    if not isinstance(answer, list) or answer[0] is None:
        return None
    texts = [b"" if value is None else value for value in answer]
    state, attempt, pod, incarnation, next_token, fingerprint, failures, model, affinity, size_bytes, cancelled = (
        value.decode("utf-8", "replace") for value in texts
    )
    return Route(
        state,
        _number(attempt),
        pod,
        incarnation,
        _number(next_token),
        fingerprint,
        _number(failures),
        model,
        affinity,
        _number(size_bytes),
        bool(cancelled),
    )


def cancelled(route: Route) -> Done:
    """The terminal event of a stream that is cancelled while no pod has it."""
    sent = route.next_token
    usage = {"prompt_tokens": 0, "completion_tokens": sent, "total_tokens": sent}
    return Done("cancelled", usage, {"attempts": route.attempt})


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
