"""Virtual time."""

from __future__ import annotations


class SimulatedClock:
    """A clock that moves only when told to. Calling it gives seconds, as `time.monotonic` does."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def __call__(self) -> float:
        return self._now_s

    def advance(self, duration_s: float) -> None:
        """Move on by `duration_s` seconds. ValueError if that is negative: time never runs backwards."""
        if duration_s < 0:
            raise ValueError(f"duration_s must not be negative, not {duration_s}")
        self._now_s += duration_s

    def advance_to(self, when_s: float) -> None:
        """Move on to `when_s` seconds; nothing if that is past."""
        self._now_s = max(self._now_s, when_s)
