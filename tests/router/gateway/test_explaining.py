"""What is said about bodies that do not fit, by the validator's real errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from stream2llm_router.gateway.bodies import (
    LATER_OPERATION,
    ChunkBody,
    ContextBody,
    FinishBody,
    OpenBody,
    OpenOperation,
)
from stream2llm_router.gateway.explaining import explain, field_of


def said(kind: Any, body: Any) -> tuple[str, str | None]:
    adapter: TypeAdapter[Any] = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
    with pytest.raises(ValidationError) as caught:
        adapter.validate_json(body if isinstance(body, bytes) else json.dumps(body))
    first: Any = caught.value.errors(include_url=False)[0]
    return explain(first), field_of(first)


@pytest.mark.parametrize(
    ("kind", "body", "message", "field"),
    [
        (OpenBody, b"{", "the body is not JSON", None),
        (OpenBody, [], "the body must be a JSON object", None),
        (OpenBody, {"prompt": 7}, "prompt must be a string", "prompt"),
        (OpenBody, {"surprise": 1}, "surprise is no field that is known here", "surprise"),
        (OpenBody, {"stream": "a b"}, "stream must be 1 to 128 of A-Z, a-z, 0-9, '.', '_', ':' and '-'", "stream"),
        (OpenBody, {"messages": []}, "messages must have at least 1 items", "messages"),
        (OpenBody, {"messages": [{"role": "user"}]}, "messages.0.content is missing", "messages.0.content"),
        (OpenBody, {"messages": "x"}, "messages must be a list", "messages"),
        (OpenBody, {"params": 3}, "params must be a JSON object", "params"),
        (ChunkBody, {"tokens": [-1]}, "tokens.0 must be at least 0", "tokens.0"),
        (ChunkBody, {"tokens": [1 << 40]}, "tokens.0 must be at most 2147483647", "tokens.0"),
        (ChunkBody, {"tokens": [1.5]}, "tokens.0 must be a whole number", "tokens.0"),
        (ChunkBody, {"chunk": ""}, "chunk must have at least 1 characters", "chunk"),
        (ChunkBody, {"chunk": "x" * 129}, "chunk must have at most 128 characters", "chunk"),
        (ContextBody, {}, "context is missing", "context"),
        (ContextBody, {"context": [{"id": "a"}] * 4097}, "context must have at most 4096 items", "context"),
        (FinishBody, {"expect": -1}, "expect must be at least 0", "expect"),
        (OpenOperation, {"op": "append"}, "op must be 'open'", "op"),
        (LATER_OPERATION, {"op": "reopen"}, "op must be one of open, append, update, finish, cancel", "op"),
        (LATER_OPERATION, {}, "op is missing; it must be one of open, append, update, finish, cancel", "op"),
        (LATER_OPERATION, {"op": "append", "text": 1}, "text must be a string", "text"),
        (LATER_OPERATION, {"op": "update", "context": [{}]}, "context.0.id is missing", "context.0.id"),
    ],
)
def test_what_is_wrong_is_said_in_our_words(kind: Any, body: Any, message: str, field: str | None) -> None:
    assert said(kind, body) == (message, field)


class Other(BaseModel):
    """Errors of a kind that no body of ours can give today."""

    when: bytes | None = None
    many: frozenset[int] = frozenset()


def test_an_error_of_an_unknown_kind_repeats_neither_the_validator_nor_the_value() -> None:
    assert said(Other, {"many": "secret"}) == ("many is not as it must be", "many")
