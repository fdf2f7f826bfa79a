"""Whether an ingress entry may pass, as far as the entry alone tells. Pure."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from stream2llm.entries import DEFAULT_RULES, EntryError, EntryRules, Open, parse_entry
from stream2llm.errors import ErrorCode
from stream2llm.keys import STREAM_PATTERN

logger = logging.getLogger(__name__)

MAX_MODEL_CHARS = 256
MIN_AFFINITY_CHARS = 256
"""A beginning shorter than this is computed again faster than it is worth to look for its cache."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the forwarding script is told of one entry.

    A refused entry has a code; its message and field say why. `op` is known of a refused open too, because then its
    reader must be told; otherwise it is empty. `stream` is empty if it was unreadable. `digest` and `model` (the one
    that the params name, if any) are an open's, as are `affinity`, a digest of the prompt before the marker ('' if that
    is short), and `prompt_bytes`, roughly the length of what can be computed at once.
    """

    op: str
    stream: str
    digest: str = ""
    model: str = ""
    affinity: str = ""
    prompt_bytes: int = 0
    code: str = ""
    message: str = ""
    field: str = ""


def judge(fields: Mapping[bytes, bytes], rules: EntryRules = DEFAULT_RULES) -> Verdict:
    """The verdict on one raw entry. Never raises: whatever goes wrong is the entry's fault, or counts as `internal`."""
    try:
        entry = parse_entry(fields, rules)
        if isinstance(entry, Open):
            model = entry.params.get("model")
            beginning = _beginning(entry)
            return Verdict(
                "open",
                entry.stream,
                entry.digest,
                model[:MAX_MODEL_CHARS] if isinstance(model, str) else "",
                _affinity(beginning),
                len(beginning),
            )
        return Verdict(type(entry).__name__.lower(), entry.stream)
    except EntryError as error:
        return _refused(fields, error.stream or "", error.code, error.message, error.field or "")
    except Exception:
        # A mistake of ours must cost one entry and not the queue behind it.
        logger.exception("an entry could not be judged")
        return refused_as_internal(fields)


def _beginning(entry: Open) -> str:
    """The prompt up to the marker, near enough: roles and texts without the chat template."""
    if entry.prompt is not None:
        return entry.prompt.split(entry.options.marker)[0]
    text = ""
    for message in entry.messages or ():
        before, marker, _ = message["content"].partition(entry.options.marker)
        text += f"{message['role']}\n{before}\n"
        if marker:
            break
    return text


def _affinity(beginning: str) -> str:
    if len(beginning) < MIN_AFFINITY_CHARS:
        return ""
    return hashlib.blake2b(beginning.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def refused_as_internal(fields: Mapping[bytes, bytes]) -> Verdict:
    """The verdict on an entry that this router cannot handle."""
    stream = fields.get(b"stream", b"")[:200].decode("ascii", "replace")
    readable = stream if STREAM_PATTERN.fullmatch(stream) else ""
    return _refused(fields, readable, ErrorCode.INTERNAL, "the router cannot handle this entry", "")


def _refused(fields: Mapping[bytes, bytes], stream: str, code: ErrorCode, message: str, field: str) -> Verdict:
    op = "open" if fields.get(b"op") == b"open" else ""
    return Verdict(op, stream, code=str(code), message=message, field=field)
