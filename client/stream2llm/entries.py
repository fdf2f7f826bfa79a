"""Ingress entries: reading what producers write, and writing it. Pure; raises nothing but EntryError on bad input."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

from stream2llm import settings
from stream2llm.errors import ErrorCode
from stream2llm.keys import STREAM_PATTERN

KNOWN_FIELDS = frozenset(
    (
        "stream",
        "op",
        "messages",
        "prompt",
        "params",
        "options",
        "text",
        "tokens",
        "chunk",
        "context",
        "version",
        "expect",
        "traceparent",
    )
)
"""All other fields of an entry are dropped on the way."""
_KNOWN_FIELDS_BYTES = frozenset(name.encode() for name in KNOWN_FIELDS)
OPS = ("open", "append", "update", "finish", "cancel")
MAX_TOKEN_ID = 2**31 - 1
MAX_INTEGER = 2**53
"""Integers in entries stay exact in every language's JSON."""
MAX_JSON_INTEGER = 2**63 - 1
"""Integers in JSON fields (a seed, say) fit a signed 64-bit number."""
MAX_TRACEPARENT_BYTES = 256
MAX_JSON_DEPTH = 64
"""Objects and lists in one another; more serves no purpose and exhausts the stacks of whoever handles it."""


class EntryError(ValueError):
    """An entry that cannot be taken.

    field: the field that is wrong; stream: the stream id, if that much was readable.
    """

    def __init__(self, code: ErrorCode, message: str, field: str | None = None, stream: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.field, self.stream = code, message, field, stream


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How a stream behaves while it is open."""

    idle_timeout_ms: int = settings.IDLE_TIMEOUT_MS
    deadline_ms: int | None = None
    """From the open's arrival in Redis."""
    on_timeout: str = "fail"
    """`fail`, or `finish`: answer with what has arrived."""
    separator: str = settings.SEPARATOR
    marker: str = settings.MARKER


@dataclass(frozen=True, slots=True)
class ContextItem:
    """One item of an update; without text it is one that was sent before."""

    id: str
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """Either `messages` (OpenAI chat messages) or `prompt`; one of them holds the marker exactly once."""

    stream: str
    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    options: StreamOptions = field(default_factory=StreamOptions)
    digest: str = ""
    """SHA-256 of all of the above in canonical form: equal digests mean the same open."""
    traceparent: str = ""
    """The span that the stream is opened in, as W3C's Trace Context writes it; what cannot be read counts as none."""


@dataclass(frozen=True, slots=True)
class Append:
    """One chunk, of text or of token ids."""

    stream: str
    text: str | None = None
    tokens: tuple[int, ...] | None = None
    chunk: str | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """The whole context, in order."""

    stream: str
    context: tuple[ContextItem, ...]
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """The prompt is whole, perhaps with a last chunk."""

    stream: str
    text: str | None = None
    tokens: tuple[int, ...] | None = None
    chunk: str | None = None
    expect: int | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    stream: str


Entry: TypeAlias = Open | Append | Update | Finish | Cancel
Fields: TypeAlias = Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class EntryRules:
    """What a pool may set for itself: the longest chunk, and the idle timeout of an open that names none."""

    max_chunk_bytes: int = settings.MAX_CHUNK_BYTES
    idle_timeout_ms: int = settings.IDLE_TIMEOUT_MS


DEFAULT_RULES = EntryRules()


def parse_entry(fields: Fields, rules: EntryRules = DEFAULT_RULES) -> Entry:
    """Read one raw entry.

    Raises EntryError, whose `stream` is set whenever the stream id itself was readable.
    """
    stream = _stream_id(fields)
    try:
        op = _text(fields, "op")
        if op is None:
            _refuse(ErrorCode.MALFORMED, "field op is missing", "op")
        parser = _PARSERS.get(op)
        if parser is None:
            _refuse(ErrorCode.UNKNOWN_OP, f"op {_short(op)} is none of {', '.join(OPS)}", "op")
        entry = parser(stream, fields, rules)
        _check_size(fields)
        return entry
    except EntryError as error:
        raise EntryError(error.code, error.message, error.field, stream) from None


def _check_size(fields: Fields) -> None:
    """All known fields travel on, also those that the op does not use, so together they count."""
    size_bytes = sum(len(value) for name, value in fields.items() if name in _KNOWN_FIELDS_BYTES)
    if size_bytes > settings.MAX_STREAM_BYTES:
        _refuse(
            ErrorCode.STREAM_TOO_LARGE, f"the entry has {size_bytes} bytes, limit {settings.MAX_STREAM_BYTES}", None
        )


def _stream_id(fields: Fields) -> str:
    raw = fields.get(b"stream")
    if raw is None:
        _refuse(ErrorCode.MALFORMED, "field stream is missing", "stream")
    stream = raw[: settings.MAX_ID_CHARS + 1].decode("ascii", "replace")
    if not STREAM_PATTERN.fullmatch(stream):
        _refuse(
            ErrorCode.MALFORMED,
            f"stream {_short(stream)} must be 1 to {settings.MAX_ID_CHARS} of A-Z, a-z, 0-9, '.', '_', ':' and '-'",
            "stream",
        )
    return stream


def _refuse(code: ErrorCode, message: str, field: str | None) -> NoReturn:
    raise EntryError(code, message, field)


def _short(value: object) -> str:
    """The value as it can be shown: at most 60 characters, printable, safe to encode."""
    shown = ascii(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _text(fields: Fields, name: str) -> str | None:
    raw = fields.get(name.encode())
    if raw is None:
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        _refuse(ErrorCode.MALFORMED, f"field {name} is not UTF-8 (byte {error.start})", name)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that comes twice: which one counts depends on who reads it."""
    value = dict(pairs)
    if len(value) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {_short(twice)} comes twice in one object")
    return value


def _load_json(fields: Fields, name: str) -> Any:
    text = _text(fields, name)
    if text is None:
        return None
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_object)
    except RecursionError:
        _refuse(ErrorCode.MALFORMED, f"field {name} is nested deeper than {MAX_JSON_DEPTH} levels", name)
    except ValueError as error:
        _refuse(ErrorCode.MALFORMED, f"field {name} is not JSON: {str(error)[:120]}", name)


def _json(fields: Fields, name: str) -> Any:
    value = _load_json(fields, name)
    _check_json(value, name)
    return value


def _check_json(value: Any, name: str) -> None:
    """Refuse what JSON lets through and UTF-8, a number type or a stack elsewhere does not."""
    level = [value]
    for _ in range(MAX_JSON_DEPTH + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                _check_encodable(item, name)
            elif isinstance(item, float) and not math.isfinite(item):
                _refuse(ErrorCode.MALFORMED, f"field {name} holds a number beyond the range of a double", name)
            elif isinstance(item, int) and abs(item) > MAX_JSON_INTEGER:
                _refuse(
                    ErrorCode.MALFORMED, f"field {name} holds {_short(item)}, beyond {MAX_JSON_INTEGER} (64 bits)", name
                )
            elif isinstance(item, dict):
                below.extend(item.keys())
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        if not below:
            return
        level = below
    _refuse(ErrorCode.MALFORMED, f"field {name} is nested deeper than {MAX_JSON_DEPTH} levels", name)


def _check_encodable(text: str, name: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        _refuse(ErrorCode.MALFORMED, f"field {name} holds half of a surrogate pair", name)


def _integer(value: Any, name: str, low: int, high: int, code: ErrorCode = ErrorCode.MALFORMED) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        _refuse(code, f"{name} must be an integer, not {_short(value)}", name)
    if not low <= value <= high:
        _refuse(code, f"{name} must be between {low} and {high}, not {_short(value)}", name)
    return value


def _integer_field(fields: Fields, name: str, low: int, high: int) -> int | None:
    text = _text(fields, name)
    if text is None:
        return None
    digits = text[1:] if text.startswith("-") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
        _refuse(ErrorCode.MALFORMED, f"{name} must be an integer, not {_short(text)}", name)
    return _integer(int(text), name, low, high)


def _chunk_id(fields: Fields) -> str | None:
    text = _text(fields, "chunk")
    if text is not None and not 1 <= len(text) <= settings.MAX_ID_CHARS:
        _refuse(
            ErrorCode.MALFORMED,
            f"chunk {_short(text)} must be 1 to {settings.MAX_ID_CHARS} characters long, not {len(text)}",
            "chunk",
        )
    return text


def _content(fields: Fields, rules: EntryRules, *, required: bool) -> tuple[str | None, tuple[int, ...] | None]:
    raw_text, raw_tokens = fields.get(b"text"), fields.get(b"tokens")
    if raw_text is not None and raw_tokens is not None:
        _refuse(ErrorCode.MIXED_INPUT, "an entry has either text or tokens, not both", "tokens")
    for name, raw in (("text", raw_text), ("tokens", raw_tokens)):
        if raw is not None and len(raw) > rules.max_chunk_bytes:
            _refuse(ErrorCode.CHUNK_TOO_LARGE, f"{name} has {len(raw)} bytes, limit {rules.max_chunk_bytes}", name)
    if raw_text is not None:
        return _text(fields, "text"), None
    if raw_tokens is None:
        if required:
            _refuse(ErrorCode.MALFORMED, "an append needs text or tokens", "text")
        return None, None
    return None, _token_ids(fields)


def _token_ids(fields: Fields) -> tuple[int, ...]:
    # A chunk may hold half a million ids, so they are looked at one by one only if one of them is wrong.
    tokens = _load_json(fields, "tokens")
    if not isinstance(tokens, list):
        _check_json(tokens, "tokens")
        _refuse(ErrorCode.MALFORMED, f"tokens must be a list of token ids, not {_short(tokens)}", "tokens")
    if set(map(type, tokens)) - {int} or (tokens and not 0 <= min(tokens) <= max(tokens) <= MAX_TOKEN_ID):
        _check_json(tokens, "tokens")
        for token in tokens:
            _integer(token, "tokens", 0, MAX_TOKEN_ID)
    return tuple(tokens)


def _parse_append(stream: str, fields: Fields, rules: EntryRules) -> Append:
    text, tokens = _content(fields, rules, required=True)
    return Append(stream, text, tokens, _chunk_id(fields))


def _parse_finish(stream: str, fields: Fields, rules: EntryRules) -> Finish:
    text, tokens = _content(fields, rules, required=False)
    return Finish(stream, text, tokens, _chunk_id(fields), _integer_field(fields, "expect", 0, MAX_INTEGER))


def _parse_cancel(stream: str, fields: Fields, rules: EntryRules) -> Cancel:
    return Cancel(stream)


def _parse_update(stream: str, fields: Fields, rules: EntryRules) -> Update:
    size_bytes = len(fields.get(b"context", b""))
    if size_bytes > settings.MAX_STREAM_BYTES:
        _refuse(
            ErrorCode.STREAM_TOO_LARGE, f"context has {size_bytes} bytes, limit {settings.MAX_STREAM_BYTES}", "context"
        )
    raw = _json(fields, "context")
    if raw is None:
        _refuse(ErrorCode.MALFORMED, "field context is missing", "context")
    if not isinstance(raw, list):
        _refuse(ErrorCode.MALFORMED, f"context must be a list of items, not {_short(raw)}", "context")
    if len(raw) > settings.MAX_CONTEXT_ITEMS:
        _refuse(
            ErrorCode.TOO_MANY_ITEMS, f"context has {len(raw)} items, limit {settings.MAX_CONTEXT_ITEMS}", "context"
        )
    items = tuple(_context_item(item, rules) for item in raw)
    return Update(stream, items, _integer_field(fields, "version", -MAX_INTEGER, MAX_INTEGER))


def _context_item(raw: Any, rules: EntryRules) -> ContextItem:
    if not isinstance(raw, dict):
        _refuse(ErrorCode.MALFORMED, f"a context item must be an object, not {_short(raw)}", "context")
    identifier, text = raw.get("id"), raw.get("text")
    if not isinstance(identifier, str) or not 1 <= len(identifier) <= settings.MAX_ID_CHARS:
        _refuse(
            ErrorCode.MALFORMED,
            f"context item id {_short(identifier)} must be a text of 1 to {settings.MAX_ID_CHARS} characters",
            "context",
        )
    if text is not None and not isinstance(text, str):
        _refuse(ErrorCode.MALFORMED, f"text of context item {_short(identifier)} must be a text", "context")
    if text is not None and len(text.encode()) > rules.max_chunk_bytes:
        _refuse(
            ErrorCode.CHUNK_TOO_LARGE,
            f"context item {_short(identifier)} has {len(text.encode())} bytes, limit {rules.max_chunk_bytes}",
            "context",
        )
    return ContextItem(identifier, text)


def _parse_open(stream: str, fields: Fields, rules: EntryRules) -> Open:
    for name in ("messages", "prompt", "params", "options"):
        size_bytes = len(fields.get(name.encode(), b""))
        if size_bytes > settings.MAX_CHUNK_BYTES:
            _refuse(ErrorCode.CHUNK_TOO_LARGE, f"{name} has {size_bytes} bytes, limit {settings.MAX_CHUNK_BYTES}", name)
    raw_messages, prompt = _json(fields, "messages"), _text(fields, "prompt")
    if (raw_messages is None) == (prompt is None):
        _refuse(ErrorCode.MALFORMED, "an open needs either messages or prompt", "messages")
    messages = None if raw_messages is None else _messages(raw_messages)
    params = _json(fields, "params")
    if params is not None and not isinstance(params, dict):
        _refuse(ErrorCode.INVALID_PARAMS, f"params must be an object, not {_short(params)}", "params")
    options = _options(_json(fields, "options"), rules)
    _check_marker(messages, prompt, options.marker)
    params = params or {}
    digest = open_digest(messages, prompt, params, options)
    return Open(stream, messages, prompt, params, options, digest, _traceparent(fields))


def _traceparent(fields: Fields) -> str:
    """Never refused: whoever passes one on seldom wrote it."""
    raw = fields.get(b"traceparent", b"")
    return raw.decode() if len(raw) <= MAX_TRACEPARENT_BYTES and raw.isascii() else ""


def _messages(raw: Any) -> list[dict[str, Any]]:
    if not isinstance(raw, list) or not raw:
        _refuse(ErrorCode.MALFORMED, f"messages must be a list of at least one message, not {_short(raw)}", "messages")
    for message in raw:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            _refuse(ErrorCode.MALFORMED, f"message {_short(message)} must be an object with a role", "messages")
        content = message.get("content")
        if not isinstance(content, str):
            _refuse(ErrorCode.MALFORMED, f"content {_short(content)} of a message must be a text", "messages")
    return raw


def _check_marker(messages: list[dict[str, Any]] | None, prompt: str | None, marker: str) -> None:
    where = "messages" if prompt is None else "prompt"
    texts = [message["content"] for message in messages or ()] if prompt is None else [prompt]
    found = sum(text.count(marker) for text in texts)
    if found != 1:
        _refuse(
            ErrorCode.MARKER, f"the marker {_short(marker)} must be in {where} exactly once, found {found} times", where
        )


def _options(raw: Any, rules: EntryRules) -> StreamOptions:
    if raw is None:
        return StreamOptions(idle_timeout_ms=rules.idle_timeout_ms)
    code = ErrorCode.INVALID_OPTIONS
    if not isinstance(raw, dict):
        _refuse(code, f"options must be an object, not {_short(raw)}", "options")
    unknown = sorted(set(raw) - set(StreamOptions.__slots__))
    if unknown:
        _refuse(code, f"options has {_short(unknown[0])}; known are {', '.join(StreamOptions.__slots__)}", "options")
    values = {"idle_timeout_ms": rules.idle_timeout_ms, **raw}
    if "idle_timeout_ms" in raw:
        _integer(raw["idle_timeout_ms"], "options.idle_timeout_ms", 1, settings.MAX_TIMEOUT_MS, code)
    if raw.get("deadline_ms") is not None:
        _integer(raw["deadline_ms"], "options.deadline_ms", 1, settings.MAX_TIMEOUT_MS, code)
    if raw.get("on_timeout", "fail") not in ("fail", "finish"):
        _refuse(
            code, f"options.on_timeout must be fail or finish, not {_short(raw['on_timeout'])}", "options.on_timeout"
        )
    for name, low in (("separator", 0), ("marker", 1)):
        if name in raw and not (isinstance(raw[name], str) and low <= len(raw[name]) <= settings.MAX_ID_CHARS):
            _refuse(
                code,
                f"options.{name} must be {low} to {settings.MAX_ID_CHARS} characters of text, not {_short(raw[name])}",
                f"options.{name}",
            )
    return StreamOptions(**values)


def open_digest(
    messages: list[dict[str, Any]] | None, prompt: str | None, params: dict[str, Any], options: StreamOptions
) -> str:
    """SHA-256 (hex) of the open in canonical JSON."""
    content = [messages, prompt, params, [getattr(options, name) for name in StreamOptions.__slots__]]
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


_PARSERS: dict[str, Callable[[str, Fields, EntryRules], Entry]] = {
    "open": _parse_open,
    "append": _parse_append,
    "update": _parse_update,
    "finish": _parse_finish,
    "cancel": _parse_cancel,
}


def encode(entry: Entry) -> dict[str, str]:
    """The entry's fields as a producer writes them; `parse_entry` of it gives the entry back."""
    fields = {"stream": entry.stream, "op": type(entry).__name__.lower()}
    if isinstance(entry, Open):
        if entry.messages is not None:
            fields["messages"] = _dump(entry.messages)
        if entry.prompt is not None:
            fields["prompt"] = entry.prompt
        if entry.params:
            fields["params"] = _dump(entry.params)
        default = StreamOptions()
        chosen = {
            name: getattr(entry.options, name)
            for name in StreamOptions.__slots__
            if getattr(entry.options, name) != getattr(default, name)
        }
        if chosen:
            fields["options"] = _dump(chosen)
        if entry.traceparent:
            fields["traceparent"] = entry.traceparent
    elif isinstance(entry, Update):
        items = [{"id": item.id} | ({} if item.text is None else {"text": item.text}) for item in entry.context]
        fields["context"] = _dump(items)
        if entry.version is not None:
            fields["version"] = str(entry.version)
    elif isinstance(entry, Append | Finish):
        if entry.text is not None:
            fields["text"] = entry.text
        if entry.tokens is not None:
            fields["tokens"] = _dump(list(entry.tokens))
        if entry.chunk is not None:
            fields["chunk"] = entry.chunk
        if isinstance(entry, Finish) and entry.expect is not None:
            fields["expect"] = str(entry.expect)
    return fields


def encode_bytes(entry: Entry) -> dict[bytes, bytes]:
    """As `encode`, in bytes; UnicodeEncodeError for text that is not Unicode."""
    return {name.encode(): value.encode() for name, value in encode(entry).items()}


def _dump(value: Sequence[Any] | Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
