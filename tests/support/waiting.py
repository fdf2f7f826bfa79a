"""Waits until something holds, with a limit that only a hang can reach."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(
    what: str,
    done: Callable[[], T],
    timeout_s: float = 300.0,
    *,
    despite: tuple[type[Exception], ...] = (),
) -> T:
    """Asks `done` until its value is true, and returns it; an exception of `despite` counts as not yet.

    Raises AssertionError with `what` after `timeout_s` seconds.
    """
    give_up_s = time.monotonic() + timeout_s
    seen: Exception | None = None
    while True:
        try:
            if value := done():
                return value
        except despite as error:
            seen = error
        assert time.monotonic() < give_up_s, f"not within {timeout_s:g} s: {what}" + (f" ({seen})" if seen else "")
        time.sleep(0.05)
