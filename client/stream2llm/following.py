"""A reader's place in a reply stream: what to ask Redis for, what its answer means, when to stop. No I/O."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Any

from stream2llm import settings
from stream2llm.errors import NoAnswer, ReplyGone
from stream2llm.events import Event, is_terminal, parse_event
from stream2llm.keys import PoolKeys, check_stream

logger = logging.getLogger(__name__)

BATCH_EVENTS = 500
START = "0"
_EVENT_ID = re.compile(r"[0-9]{1,20}(-[0-9]{1,20})?")
_MAX_ID_PART = 2**64 - 1


def check_event_id(text: str) -> str:
    """Return the id of a reply's event, or raise ValueError naming what is wrong with it."""
    if not _EVENT_ID.fullmatch(text) or any(int(part) > _MAX_ID_PART for part in text.split("-")):
        raise ValueError(f"{text[:60]!r} is no event id; they look like 1764482400000-0, and {START} is the beginning")
    return text


class Following:
    """Reads one reply from the event after `after` to the terminal one.

    timeout_s: the longest silence between events; accept_timeout_s: the longest wait for the first one, as nobody else
    would tell that no router is there. None for no limit. Raises ValueError for a stream or event id that is none.
    """

    def __init__(
        self,
        keys: PoolKeys,
        tenant: str,
        stream: str,
        *,
        after: str = START,
        timeout_s: float | None = None,
        accept_timeout_s: float | None = settings.ACCEPT_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.key = keys.reply(tenant, check_stream(stream))
        self.after = check_event_id(after)
        self.ended = False
        self._pool, self._tenant, self._stream = keys.pool, tenant, stream
        self._timeout_s, self._accept_timeout_s = timeout_s, accept_timeout_s
        self._clock, self._heard_s = clock, clock()
        self._anything = after != START

    def block_ms(self) -> int:
        """How long the next read may block: at most until the caller's time is over, and never for ever."""
        left_s = [limit_s - (self._clock() - self._heard_s) for limit_s in self._limits_s()]
        return int(max(1, min([settings.BLOCK_MS, *(1000 * s for s in left_s)])))

    def take(self, answer: Any, *, exists: bool) -> list[tuple[str, Event]]:
        """The events in the answer to an XREAD, each with its id.

        exists: whether the reply key is there, which an empty answer leaves open. Raises NoAnswer after too long a
        silence, ReplyGone if there was a reply and it is no longer there.
        """
        found: list[tuple[str, Event]] = []
        for _, entries in answer or ():
            for entry_id, fields in entries:
                self.after, self._anything, self._heard_s = entry_id.decode(), True, self._clock()
                event = self._event(fields)
                if event is not None and not self.ended:
                    found.append((self.after, event))
                    self.ended = is_terminal(event)
        if not answer:
            if self._anything and not exists:
                raise ReplyGone(f"stream {self._stream}: its reply has expired or is lost")
            self.check()
        return found

    def check(self) -> None:
        """Raises NoAnswer if it has been silent for too long."""
        silent_s = self._clock() - self._heard_s
        if any(silent_s >= limit_s for limit_s in self._limits_s()):
            raise NoAnswer(self._complaint(silent_s))

    def _limits_s(self) -> list[float]:
        limits_s = (self._timeout_s, None if self._anything else self._accept_timeout_s)
        return [limit_s for limit_s in limits_s if limit_s is not None]

    def _complaint(self, silent_s: float) -> str:
        if self._anything:
            return f"stream {self._stream}: no event for {silent_s:.1f} s"
        return (
            f"stream {self._stream}: no router has taken it in {silent_s:.1f} s; "
            f"is one running for pool {self._pool}, and does it serve tenant {self._tenant}?"
        )

    def _event(self, fields: dict[bytes, bytes]) -> Event | None:
        try:
            return parse_event(fields)
        except ValueError as error:
            logger.warning("entry %s of %s is skipped: %s", self.after, self.key, error)
            return None
