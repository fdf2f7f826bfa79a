"""Reply events: what a reader of the reply stream gets. Entry fields are exactly `event` and `data` (JSON)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Accepted:
    """A pod has taken the stream."""

    pod: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """How far the prompt is, at most twice a second."""

    received_tokens: int
    computed_tokens: int
    invalidated_tokens: int


@dataclass(frozen=True, slots=True)
class Token:
    """One or more tokens of the answer; `index` is the first one's."""

    index: int
    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The answer is complete. finish_reason: stop, length or cancelled; timings as in docs/wire-protocol.md."""

    finish_reason: str
    usage: dict[str, int] = field(default_factory=dict)
    timings: dict[str, int | float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """An entry was left out (`terminal` False), or the stream is over."""

    code: str
    message: str
    field: str | None = None
    terminal: bool = True
    ingress_id: str | None = None


Event: TypeAlias = Accepted | Prefill | Token | Done | ErrorEvent

_NAMES: dict[type[Any], str] = {
    Accepted: "accepted",
    Prefill: "prefill",
    Token: "token",
    Done: "done",
    ErrorEvent: "error",
}
_TYPES: dict[str, type[Any]] = {name: kind for kind, name in _NAMES.items()}


def is_terminal(event: Event) -> bool:
    return isinstance(event, Done) or (isinstance(event, ErrorEvent) and event.terminal)


def encode(event: Event) -> dict[str, str]:
    """The entry's two fields."""
    return {"event": _NAMES[type(event)], "data": json.dumps(asdict(event), ensure_ascii=False, separators=(",", ":"))}


def parse_event(fields: Mapping[bytes, bytes]) -> Event | None:
    """The event in a reply entry; None for a kind that this version does not know. Unknown data keys are dropped.

    Raises ValueError for an entry that is no event at all.
    """
    try:
        kind = _TYPES.get(fields[b"event"].decode())
        if kind is None:
            return None
        data = json.loads(fields[b"data"])
        if not isinstance(data, dict):
            raise ValueError("data is no JSON object")
        values = {name: data[name] for name in kind.__dataclass_fields__ if name in data}
        if kind is Token:
            values["token_ids"] = tuple(values["token_ids"])
        event: Event = kind(**values)
        return event
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not a reply event: {error}") from error
