"""Whether an ingress entry may pass, as far as the entry alone tells. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stream2llm.entries import KNOWN_FIELDS, EntryError, Open, parse_entry

_KNOWN = {name.encode() for name in KNOWN_FIELDS}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the forwarding script is told of one entry.

    op is empty for a refused entry, whose code, message and field say why; stream is empty if it was unreadable.
    `digest` is the open's, or the word `open` for an open that was refused, because then its reader must be told.
    """

    op: str
    stream: str
    size_bytes: int
    digest: str = ""
    code: str = ""
    message: str = ""
    field: str = ""


def judge(fields: Mapping[bytes, bytes]) -> Verdict:
    """The verdict on one raw entry."""
    size_bytes = sum(len(value) for name, value in fields.items() if name in _KNOWN)
    try:
        entry = parse_entry(fields)
    except EntryError as error:
        opening = "open" if fields.get(b"op") == b"open" else ""
        return Verdict("", error.stream or "", size_bytes, opening, str(error.code), error.message, error.field or "")
    digest = entry.digest if isinstance(entry, Open) else ""
    return Verdict(type(entry).__name__.lower(), entry.stream, size_bytes, digest)
