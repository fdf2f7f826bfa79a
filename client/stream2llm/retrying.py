"""Whether a failed Redis command is tried again, and when. No I/O, so both clients share it."""

from __future__ import annotations

import time
from collections.abc import Callable

from redis import exceptions

from stream2llm.connecting import explained
from stream2llm.errors import RedisRefused, Unreachable

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 2.0

_AWAY = (exceptions.ConnectionError, exceptions.TimeoutError)
# Subclasses of the above, and yet no second try will help.
_LOCKED_OUT = (exceptions.AuthenticationError, exceptions.AuthorizationError)
_PASSING = (
    exceptions.BusyLoadingError,
    exceptions.ClusterDownError,
    exceptions.MasterDownError,
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.TryAgainError,
)
_PASSING_CODES = frozenset(
    ("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN")
)


def passes(error: Exception) -> bool:
    """Whether the server answers, in a state that is no fault of the command and passes without it.

    A fail-over, a start, a memory or disk that is full, replicas that are away, a script that takes long.
    """
    # Where the client has a class for a code, its text goes without the code.
    return isinstance(error, _PASSING) or str(error).partition(" ")[0] in _PASSING_CODES


class Retrying:
    """The tries of one command.

    tries: how many there may be; None for as many as fit into `outage_s`, counted from the first failure.
    """

    def __init__(
        self, tries: int | None, *, outage_s: float = float("inf"), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tries, self._outage_s, self._clock = tries, outage_s, clock
        self._failures = 0
        self._failing_since_s = 0.0

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, error: exceptions.RedisError) -> float:
        """Seconds to wait before the next try. Raises Unreachable or RedisRefused when there is to be none."""
        now_s = self._clock()
        if not self._failures:
            self._failing_since_s = now_s
        self._failures += 1
        over = self._failures == self._tries or now_s - self._failing_since_s >= self._outage_s
        if isinstance(error, _AWAY) and not isinstance(error, _LOCKED_OUT):
            if over:
                raise Unreachable(f"Redis cannot be reached: {error}") from error
        elif over or not passes(error):
            raise RedisRefused(f"Redis refuses: {explained(error)}") from error
        return float(min(FIRST_DELAY_S * 2 ** (self._failures - 1), LONGEST_DELAY_S))
