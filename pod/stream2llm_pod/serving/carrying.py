"""What an earlier attempt of a stream has told its reader, read back from the reply. Pure."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stream2llm.events import ErrorEvent, Token, parse_event

logger = logging.getLogger(__name__)


class IncompleteReply(Exception):
    """The reply does not hold all the tokens that were sent, so no pod can go on with it."""


@dataclass(frozen=True, slots=True)
class Carried:
    """The part of the answer that the reader has.

    `first_token_ms` is the Redis time of its first token; `told` are the ingress ids of the entries that the reader
    knows to have been left out.
    """

    token_ids: tuple[int, ...] = ()
    text: str = ""
    first_token_ms: int | None = None
    told: frozenset[str] = frozenset()


NOTHING = Carried()


def read_reply(entries: Iterable[tuple[bytes, Mapping[bytes, bytes]]], next_token: int) -> Carried:
    """What is in a reply, of which the route says that `next_token` tokens were sent.

    Raises IncompleteReply if they are not all there.
    """
    token_ids: list[int] = []
    texts: list[str] = []
    told = set()
    first_token_ms = None
    for entry_id, fields in entries:
        try:
            event = parse_event(fields)
        except ValueError as error:
            logger.warning("a reply entry is skipped: %s", error)
            continue
        if isinstance(event, Token) and event.index == len(token_ids):
            if first_token_ms is None:
                first_token_ms = int(entry_id.split(b"-")[0])
            token_ids.extend(event.token_ids)
            texts.append(event.text)
        elif isinstance(event, ErrorEvent) and event.ingress_id is not None:
            told.add(event.ingress_id)
    if len(token_ids) != next_token:
        raise IncompleteReply(f"{next_token} tokens were sent and {len(token_ids)} are there")
    return Carried(tuple(token_ids), "".join(texts), first_token_ms, frozenset(told))
