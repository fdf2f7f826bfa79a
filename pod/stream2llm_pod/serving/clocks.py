"""Redis' clock, read without asking Redis each time."""

from __future__ import annotations

import time
from collections.abc import Callable


class RedisClock:
    """Milliseconds of Redis' clock, carried on by the local monotonic clock between readings."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._monotonic = monotonic
        self._offset_ms = wall() * 1000 - monotonic() * 1000

    def observe(self, redis_ms: int) -> None:
        """Redis has just said that its time is `redis_ms`."""
        self._offset_ms = redis_ms - self._monotonic() * 1000

    def now_ms(self) -> int:
        return round(self._monotonic() * 1000 + self._offset_ms)
