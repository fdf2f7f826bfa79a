"""Compares what this pod believes of its streams with what Redis says, since Redis may have lost something. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Finding(StrEnum):
    """What is to be done about one stream."""

    FINE = "fine"
    DROP = "drop"  # It is another's, or over.
    LOST = "lost"  # Redis has forgotten something that this pod has seen there.
    BEHIND = "behind"  # There are entries that have not come through the log.


@dataclass(frozen=True, slots=True)
class Held:
    """What a session knew before the route was read."""

    attempt: int
    incarnation: str
    open_id: str
    applied_seq: int
    written_tokens: int


@dataclass(frozen=True, slots=True)
class Stored:
    """The stream's route."""

    state: str
    attempt: int
    incarnation: str
    open_id: str
    seq: int
    next_token: int


def compare(held: Held, stored: Stored | None, *, was_there: bool) -> Finding:
    """`stored` is None if there is no route; `was_there`: the pod was up while an ended one's would be kept."""
    if stored is None:
        return Finding.LOST if was_there else Finding.DROP
    if stored.open_id != held.open_id or stored.state == "ended" or stored.attempt > held.attempt:
        return Finding.DROP
    if stored.attempt < held.attempt or stored.incarnation != held.incarnation:
        # The assignment to this pod itself is gone.
        return Finding.DROP
    if stored.seq < held.applied_seq or stored.next_token < held.written_tokens:
        return Finding.LOST
    return Finding.BEHIND if stored.seq > held.applied_seq else Finding.FINE
