"""Signals that tell a command to end, as exceptions, so that it can tidy up first."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Ended(KeyboardInterrupt):
    """A signal other than SIGINT has come. number: which."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Within the block SIGTERM and SIGHUP raise Ended, as SIGINT raises KeyboardInterrupt.

    A signal that is ignored, as `nohup` has it, stays so. After the block signals do what they did before: a second one
    ends a command that is slow to tidy up.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise Ended(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_status(error: KeyboardInterrupt) -> int:
    """The status that shells give to a program that the signal has ended."""
    return 128 + (error.number if isinstance(error, Ended) else signal.SIGINT)
