"""What one router allows over HTTP, and who holds how much of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from stream2llm import settings

SETTLE_S = 60.0
"""A stream that was opened this recently may still wait in ingress, so that its missing route says nothing."""
PRUNE_S = 1.0
"""How often a tenant at its limit may cost a look at all its streams."""


class LimitReached(Exception):
    """A tenant holds all that it may at a time."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"{limit} {what} at a time are what a tenant may have")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one router.

    max_open_streams, max_readers and max_requests are each tenant's: streams opened here and not ended, replies read at
    a time, requests to the pods' OpenAI endpoints at a time.
    """

    max_body_bytes: int = settings.MAX_STREAM_BYTES
    max_buffered_bytes: int = 16 * settings.MAX_STREAM_BYTES
    """Request bodies of all tenants that are in memory at a time."""
    max_open_streams: int = 256
    max_readers: int = 256
    max_requests: int = 256


class Slots:
    """Counts what each tenant holds of one thing. Not for several threads."""

    def __init__(self, what: str, limit: int) -> None:
        self.what, self.limit = what, limit
        self._held: Counter[str] = Counter()

    def take(self, tenant: str) -> None:
        """Raises LimitReached."""
        if self._held[tenant] >= self.limit:
            raise LimitReached(self.what, self.limit)
        self._held[tenant] += 1

    def give_back(self, tenant: str) -> None:
        self._held[tenant] -= 1
        if self._held[tenant] <= 0:
            del self._held[tenant]

    @property
    def total(self) -> int:
        return self._held.total()


class OpenStreams:
    """The streams that each tenant has opened through this router, until they are found to have ended.

    Nobody is asked about them before a tenant reaches its limit.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._opened_s: dict[str, dict[str, float]] = {}
        self._pruned_s: dict[str, float] = {}

    def add(self, tenant: str, stream: str) -> None:
        self._opened_s.setdefault(tenant, {}).setdefault(stream, self._clock())

    def discard(self, tenant: str, stream: str) -> None:
        streams = self._opened_s.get(tenant, {})
        streams.pop(stream, None)
        if not streams:
            self._opened_s.pop(tenant, None)
            self._pruned_s.pop(tenant, None)

    def full(self, tenant: str, stream: str) -> bool:
        """Whether `stream` would be one too many; one that is open already is none."""
        streams = self._opened_s.get(tenant, {})
        return stream not in streams and len(streams) >= self.limit

    def to_prune(self, tenant: str) -> list[str]:
        """The streams whose state is worth asking for; empty if that was done a moment ago."""
        now_s = self._clock()
        if now_s - self._pruned_s.get(tenant, float("-inf")) < PRUNE_S:
            return []
        self._pruned_s[tenant] = now_s
        return list(self._opened_s.get(tenant, {}))

    def prune(self, tenant: str, states: dict[str, str | None]) -> None:
        """Forget those that have ended: their route says so, or they have none and are not new."""
        now_s = self._clock()
        for stream, state in states.items():
            opened_s = self._opened_s.get(tenant, {}).get(stream, now_s)
            if state == "ended" or (state is None and now_s - opened_s > SETTLE_S):
                self.discard(tenant, stream)

    @property
    def total(self) -> int:
        return sum(map(len, self._opened_s.values()))
