"""What is wrong with a body or a parameter, in the words of this interface. Pure.

The validator's own texts name its types and patterns; the value itself is never repeated, as it may be a whole page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stream2llm_router.gateway.bodies import OPERATIONS, STREAM_ID

_TYPES = {
    "bool_type": "true or false",
    "dict_type": "a JSON object",
    "float_type": "a number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_attributes_type": "a JSON object",
    "model_type": "a JSON object",
    "string_type": "a string",
}
_BOUNDS = {
    "greater_than": ("gt", "must be above {}"),
    "greater_than_equal": ("ge", "must be at least {}"),
    "less_than": ("lt", "must be below {}"),
    "less_than_equal": ("le", "must be at most {}"),
    "string_too_long": ("max_length", "must have at most {} characters"),
    "string_too_short": ("min_length", "must have at least {} characters"),
    "too_long": ("max_length", "must have at most {} items"),
    "too_short": ("min_length", "must have at least {} items"),
}
_PATTERNS = {STREAM_ID: "must be 1 to 128 of A-Z, a-z, 0-9, '.', '_', ':' and '-'"}
_OTHERS = {
    "extra_forbidden": "is no field that is known here",
    "json_invalid": "is not JSON",
    "missing": "is missing",
    "union_tag_invalid": f"must be one of {', '.join(OPERATIONS)}",
    "union_tag_not_found": f"is missing; it must be one of {', '.join(OPERATIONS)}",
}


def explain(error: Mapping[str, Any], *, patterns: Mapping[str, str] | None = None, whole: str = "the body") -> str:
    """One of the validator's errors as a sentence about its field.

    patterns: what a value must look like, by the regular expression that it did not match; whole: what is named where
    no single field is wrong.
    """
    kind, context = str(error["type"]), error.get("ctx") or {}
    field = field_of(error)
    if kind in _TYPES:
        said = f"must be {_TYPES[kind]}"
    elif kind in _BOUNDS:
        name, text = _BOUNDS[kind]
        said = text.format(context.get(name))
    elif kind in _OTHERS:
        said = _OTHERS[kind]
    elif kind == "literal_error":
        said = f"must be {context.get('expected')}"
    elif kind == "string_pattern_mismatch":
        known = {**_PATTERNS, **(patterns or {})}
        said = known.get(str(context.get("pattern")), "has characters that may not be there")
    elif kind == "string_unicode":
        said = "is no text that UTF-8 could hold"
    else:
        said = "is not as it must be"
    return f"{field or whole} {said}"


def field_of(error: Mapping[str, Any], *, within: Sequence[str] = ("body", "query", "path", "header")) -> str | None:
    """The field's path, as `tokens.3`; None for the whole body. An operation is no part of the path to its fields."""
    place = [str(part) for part in error["loc"]]
    if place and place[0] in within:
        place = place[1:]
    if place and place[0] in OPERATIONS:
        place = place[1:]
    if not place and str(error["type"]).startswith("union_tag"):
        return "op"
    return ".".join(place) or None
