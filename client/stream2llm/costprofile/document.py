"""The profile as JSON, schema version 1 (`docs/cost-profiles.md`). Nothing bad gets past reading."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from stream2llm.costprofile.key import ProfileKey, vllm_minor

SCHEMA = 1
SOURCES = ("measured", "estimated", "imported")
MAX_POINTS = 40
MAX_PROFILE_BYTES = 64 * 1024
COMPACT_BYTES = 4096
"""What a Kubernetes termination message holds."""
MAX_TOKENS = 1 << 24
MAX_MS = 1e7
"""Nearly three hours for one prompt: whatever takes longer is a mistake in the unit."""
MAX_COUNT = 1 << 31
_TEXT_BYTES = {"model": 256, "revision": 128, "method": 1024}
_MAX_TEXT_BYTES = 64


class InvalidProfile(ValueError):
    """A profile that cannot be used. `field` is the key it is about, e.g. `prefill.ms[3]`; `profile` for the whole."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"cost profile: {field}: {message}")
        self.field, self.message = field, message


@dataclass(frozen=True, slots=True)
class Curve:
    """Medians in milliseconds by number of tokens, strictly increasing; mad_ms: their median absolute deviations."""

    tokens: tuple[int, ...]
    ms: tuple[float, ...]
    mad_ms: tuple[float, ...] = ()

    @property
    def points(self) -> list[tuple[int, float]]:
        """(tokens, ms), as a cost curve takes them."""
        return list(zip(self.tokens, self.ms, strict=True))


@dataclass(frozen=True, slots=True)
class CostProfile:
    """Build one with `parse_profile`, or call `checked` on what was built otherwise."""

    gpu: str
    model: str
    revision: str
    dtype: str
    kv_cache_dtype: str
    quantization: str | None
    tensor_parallel_size: int
    block_size: int
    max_num_batched_tokens: int
    kv_bytes_per_token: int
    """Over all ranks."""
    vllm_version: str
    source: str
    """`measured`, `estimated` or `imported`."""
    measured_at: str
    """ISO 8601 with a time zone; may be empty where nothing was measured."""
    prefill: Curve
    swap_out: Curve
    swap_in: Curve
    method: str = ""
    """How it was made, where that is not the profiler in vLLM."""

    @property
    def key(self) -> ProfileKey:
        return ProfileKey(
            gpu=self.gpu,
            model=self.model,
            revision=self.revision,
            dtype=self.dtype,
            kv_cache_dtype=self.kv_cache_dtype,
            quantization=self.quantization,
            tensor_parallel_size=self.tensor_parallel_size,
            block_size=self.block_size,
            max_num_batched_tokens=self.max_num_batched_tokens,
            vllm_minor=vllm_minor(self.vllm_version),
        )

    @classmethod
    def of_engine(
        cls,
        key: ProfileKey,
        *,
        vllm_version: str,
        kv_bytes_per_token: int,
        source: str,
        measured_at: str,
        prefill: Curve,
        swap_out: Curve,
        swap_in: Curve,
        method: str = "",
    ) -> CostProfile:
        """A checked profile of the engine with this key. InvalidProfile as in `checked`."""
        return cls(
            gpu=key.gpu,
            model=key.model,
            revision=key.revision,
            dtype=key.dtype,
            kv_cache_dtype=key.kv_cache_dtype,
            quantization=key.quantization,
            tensor_parallel_size=key.tensor_parallel_size,
            block_size=key.block_size,
            max_num_batched_tokens=key.max_num_batched_tokens,
            kv_bytes_per_token=kv_bytes_per_token,
            vllm_version=vllm_version,
            source=source,
            measured_at=measured_at,
            prefill=prefill,
            swap_out=swap_out,
            swap_in=swap_in,
            method=method,
        ).checked()

    def checked(self) -> CostProfile:
        """Itself; InvalidProfile if its JSON could not be read back."""
        return parse_profile(self._document())

    def to_json(self, *, compact: bool = False) -> str:
        """The document. Compact: one line of at most 4,096 bytes, with four significant digits, without the method
        and, where it still does not fit, without deviations and with fewer points."""
        if not compact:
            return json.dumps(self._document(), ensure_ascii=False, indent=1, allow_nan=False) + "\n"
        shorter = _shorten(replace(self, method=""))
        if len(text := shorter._line().encode()) > COMPACT_BYTES:
            shorter = shorter._with_curves(lambda curve: replace(curve, mad_ms=()))
        while len(text := shorter._line().encode()) > COMPACT_BYTES:
            shorter = shorter._with_curves(_thin)
        return text.decode()

    def _with_curves(self, change: Any) -> CostProfile:
        return replace(self, prefill=change(self.prefill), swap_out=change(self.swap_out), swap_in=change(self.swap_in))

    def _line(self) -> str:
        return json.dumps(self._document(), ensure_ascii=False, separators=(",", ":"), allow_nan=False)

    def _document(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "gpu": self.gpu,
            "model": self.model,
            "revision": self.revision,
            "dtype": self.dtype,
            "kv_cache_dtype": self.kv_cache_dtype,
            "quantization": self.quantization,
            "tensor_parallel_size": self.tensor_parallel_size,
            "block_size": self.block_size,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "vllm_version": self.vllm_version,
            "source": self.source,
            "measured_at": self.measured_at,
        }
        if self.method:
            document["method"] = self.method
        for name in ("prefill", "swap_out", "swap_in"):
            curve: Curve = getattr(self, name)
            document[name] = {"tokens": list(curve.tokens), "ms": list(curve.ms)}
            if curve.mad_ms:
                document[name]["mad_ms"] = list(curve.mad_ms)
        return document


def _shorten(profile: CostProfile) -> CostProfile:
    def rounded(values: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(_four_digits(value) for value in values)

    return profile._with_curves(lambda curve: Curve(curve.tokens, rounded(curve.ms), rounded(curve.mad_ms)))


def _four_digits(value: float) -> float:
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() else short


def _thin(curve: Curve) -> Curve:
    """Without every second point between the first and the last."""
    last = len(curve.tokens) - 1
    kept = [i for i in range(last + 1) if i % 2 == 0 or i == last]
    return Curve(tuple(curve.tokens[i] for i in kept), tuple(curve.ms[i] for i in kept))


# -------------------------------------------------------------------- reading
def parse_profile(source: str | bytes | Mapping[str, Any]) -> CostProfile:
    """The profile in a JSON text, or in what such a text holds. Keys that are not of the schema are left out.

    Raises InvalidProfile, which names the field, the value and what is allowed.
    """
    document = source if isinstance(source, Mapping) else _load(source)
    schema = _get(document, "schema")
    if schema != SCHEMA or isinstance(schema, bool):
        raise InvalidProfile("schema", f"{_short(schema)} is not known; this version reads {SCHEMA}")
    version = _text(document, "vllm_version")
    try:
        vllm_minor(version)
    except ValueError as error:
        raise InvalidProfile("vllm_version", str(error)) from None
    kind = _text(document, "source")
    if kind not in SOURCES:
        raise InvalidProfile("source", f"{kind!r} is not one of {', '.join(SOURCES)}")
    quantization = _get(document, "quantization")
    return CostProfile(
        gpu=_text(document, "gpu"),
        model=_text(document, "model"),
        revision=_text(document, "revision", empty=True),
        dtype=_text(document, "dtype"),
        kv_cache_dtype=_text(document, "kv_cache_dtype"),
        quantization=None if quantization is None else _text(document, "quantization"),
        tensor_parallel_size=_count(document, "tensor_parallel_size"),
        block_size=_count(document, "block_size"),
        max_num_batched_tokens=_count(document, "max_num_batched_tokens"),
        kv_bytes_per_token=_count(document, "kv_bytes_per_token"),
        vllm_version=version,
        source=kind,
        measured_at=_time(document, measured=kind == "measured"),
        prefill=_curve(document, "prefill"),
        swap_out=_curve(document, "swap_out"),
        swap_in=_curve(document, "swap_in"),
        method=_text(document, "method", empty=True) if "method" in document else "",
    )


def _load(text: str | bytes) -> Mapping[str, Any]:
    size_bytes = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "surrogatepass"))
    if size_bytes > MAX_PROFILE_BYTES:
        raise InvalidProfile("profile", f"{size_bytes} bytes; at most {MAX_PROFILE_BYTES} are read")
    try:
        document = json.loads(text, object_pairs_hook=_without_repeats)
    except InvalidProfile:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidProfile("profile", f"is not JSON: {_short(str(error), 120)}") from None
    if not isinstance(document, dict):
        raise InvalidProfile("profile", f"must be a JSON object, not {_kind(document)}")
    return document


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for key, value in pairs:
        if key in document:
            raise InvalidProfile(_short(key), "appears twice")
        document[key] = value
    return document


def _get(document: Mapping[str, Any], field: str, inside: str = "") -> Any:
    if field not in document:
        raise InvalidProfile(f"{inside}{field}", "is missing")
    return document[field]


def _text(document: Mapping[str, Any], field: str, *, empty: bool = False) -> str:
    value = _get(document, field)
    if not isinstance(value, str):
        raise InvalidProfile(field, f"must be text, not {_kind(value)}")
    if not value and not empty:
        raise InvalidProfile(field, "must not be empty")
    if not value.isprintable():
        raise InvalidProfile(field, f"{_short(value)} holds characters that cannot be printed")
    limit = _TEXT_BYTES.get(field, _MAX_TEXT_BYTES)
    if len(value.encode()) > limit:
        raise InvalidProfile(field, f"has {len(value.encode())} bytes; at most {limit} are allowed")
    return value


def _time(document: Mapping[str, Any], *, measured: bool) -> str:
    value = _text(document, "measured_at", empty=not measured)
    if value:
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidProfile("measured_at", f"{value!r} is not an ISO 8601 time") from None
        if when.tzinfo is None:
            raise InvalidProfile("measured_at", f"{value!r} has no time zone; append Z for UTC")
    return value


def _count(document: Mapping[str, Any], field: str) -> int:
    return _whole(_get(document, field), field, MAX_COUNT)


def _whole(value: Any, field: str, limit: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidProfile(field, f"must be a whole number, not {_kind(value)}")
    if not 1 <= value <= limit:
        raise InvalidProfile(field, f"must be from 1 to {limit}, not {_short(value)}")
    return value


def _curve(document: Mapping[str, Any], name: str) -> Curve:
    value = _get(document, name)
    if not isinstance(value, Mapping):
        raise InvalidProfile(name, f"must be an object with tokens and ms, not {_kind(value)}")
    inside = f"{name}."
    raw = _list(_get(value, "tokens", inside), f"{inside}tokens")
    tokens = [_whole(item, f"{inside}tokens[{i}]", MAX_TOKENS) for i, item in enumerate(raw)]
    for i in range(1, len(tokens)):
        if tokens[i] <= tokens[i - 1]:
            raise InvalidProfile(
                f"{inside}tokens[{i}]", f"must be above the one before, {tokens[i - 1]}, not {tokens[i]}"
            )
    ms = _durations(_get(value, "ms", inside), f"{inside}ms", len(tokens))
    mad_ms = value.get("mad_ms")
    if mad_ms is None or mad_ms == []:
        return Curve(tuple(tokens), ms)
    return Curve(tuple(tokens), ms, _durations(mad_ms, f"{inside}mad_ms", len(tokens)))


def _list(value: Any, field: str) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)):
        raise InvalidProfile(field, f"must be a list, not {_kind(value)}")
    if not 1 <= len(value) <= MAX_POINTS:
        raise InvalidProfile(field, f"must have 1 to {MAX_POINTS} points, not {len(value)}")
    return value


def _durations(value: Any, field: str, length: int) -> tuple[float, ...]:
    values = _list(value, field)
    if len(values) != length:
        raise InvalidProfile(field, f"must have one value for each of the {length} lengths, not {len(values)}")
    for i, item in enumerate(values):
        at = f"{field}[{i}]"
        if not isinstance(item, (int, float)) or isinstance(item, bool):
            raise InvalidProfile(at, f"must be a number of milliseconds, not {_kind(item)}")
        if not (0 <= item <= MAX_MS):  # false for NaN
            raise InvalidProfile(at, f"must be from 0 to {MAX_MS:.0f} ms, not {_short(item)}")
    return tuple(values)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "NaN" if isinstance(value, float) and math.isnan(value) else f"the number {_short(value)}"
    kinds: dict[type[Any], str] = {str: "text", list: "a list", tuple: "a list", dict: "an object"}
    return kinds.get(type(value), type(value).__name__)


def _short(value: Any, limit: int = 40) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**limit:
        return f"a number of {value.bit_length()} bits"
    text = str(value) if not isinstance(value, str) else repr(value)
    return text if len(text) <= limit else text[:limit] + "…"
