"""Connections to the one node of a Redis Cluster that owns a pool's keys.

All keys of a pool are in one slot, so a plain connection to the slot's owner does everything, scripts and blocking
reads over several keys included, which cluster clients refuse. Who the owner is, the cluster says itself: the first
command that comes to another node is answered with where to go. What passes while a slot moves looks like an outage,
which every caller waits out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import redis.asyncio.connection
import redis.connection
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ConnectionError,
    MovedError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

Address = tuple[str, int]

_PASSING = (AskError, TryAgainError, ClusterDownError, ReadOnlyError)


@dataclass(slots=True)
class Owner:
    """Where the slot's owner is thought to be: at one of `seeds` until a node has said where."""

    seeds: Sequence[Address]
    _told: Address | None = None
    _next: int = field(default=0)

    @property
    def address(self) -> Address:
        return self._told or self.seeds[self._next % len(self.seeds)]

    def moved(self, host: str, port: int, asked: Address) -> None:
        """The node at `asked` says who owns the slot; an empty host means its own."""
        self._told = (host or asked[0], port)

    def failed(self) -> None:
        """The present address cannot be reached: ask another node."""
        self._told = None
        self._next += 1


def _explain(owner: Owner, error: ResponseError, asked: Address) -> ConnectionError | None:
    """The outage that an answer amounts to, if it does."""
    if isinstance(error, MovedError):
        owner.moved(error.host, error.port, asked)
        return ConnectionError(f"the slot is at {owner.address[0]}:{owner.address[1]}")
    if isinstance(error, _PASSING) or "non local key" in str(error):
        return ConnectionError(f"the slot is on the move: {error}")
    return None


class _Owned:
    """Connects to wherever the owner is thought to be, each time that a socket is made.

    The client's own method for that is overridden: the public one is not called when a lost connection is made again.
    """

    def __init__(self, *, owner: Owner, **options: Any) -> None:
        super().__init__(**options)
        self._owner = owner

    def _connect(self) -> Any:
        self.host, self.port = self._owner.address
        try:
            return super()._connect()  # type: ignore[misc]
        except (OSError, ConnectionError):
            self._owner.failed()
            raise

    def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]
        except ResponseError as error:
            outage = _explain(self._owner, error, (self.host, self.port))
            if outage is None:
                raise
            self.disconnect()  # type: ignore[attr-defined]
            raise outage from error


class _AsyncOwned:
    """As `_Owned`, for asyncio."""

    def __init__(self, *, owner: Owner, **options: Any) -> None:
        super().__init__(**options)
        self._owner = owner

    async def _connect(self) -> Any:
        self.host, self.port = self._owner.address
        try:
            return await super()._connect()  # type: ignore[misc]
        except (OSError, ConnectionError):
            self._owner.failed()
            raise

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*args, **options)  # type: ignore[misc]
        except ResponseError as error:
            outage = _explain(self._owner, error, (self.host, self.port))
            if outage is None:
                raise
            await self.disconnect()  # type: ignore[attr-defined]
            raise outage from error


class OwnedConnection(_Owned, redis.connection.Connection):
    """TCP."""


class OwnedSSLConnection(_Owned, redis.connection.SSLConnection):
    """TLS."""


class AsyncOwnedConnection(_AsyncOwned, redis.asyncio.connection.Connection):
    """TCP, asyncio."""


class AsyncOwnedSSLConnection(_AsyncOwned, redis.asyncio.connection.SSLConnection):
    """TLS, asyncio."""
