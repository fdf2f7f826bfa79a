"""Request and response bodies: the OpenAPI document is made of these."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, StrictStr, TypeAdapter

from stream2llm import settings
from stream2llm.entries import MAX_INTEGER, MAX_TOKEN_ID

OPERATIONS = ("open", "append", "update", "finish", "cancel")
STREAM_ID = r"^[A-Za-z0-9._:-]{1,128}$"
_OPEN_EXAMPLE: Any = {
    "messages": [{"role": "user", "content": "{context}\n\nWhat is this about?"}],
    "params": {"max_tokens": 64, "temperature": 0},
}


def _integral(value: Any) -> Any:
    """JSON has one type of number: 5.0 is an integer too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _all_integral(values: Any) -> Any:
    """A list may be half a million long, so its items are looked at one by one only if there is need."""
    if isinstance(values, list) and float in set(map(type, values)):
        return [_integral(value) for value in values]
    return values


def _given(name: str, other: str) -> dict[str, Any]:
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}, other: {"type": "null"}}}


def _either(one: str, other: str) -> Any:
    """JSON schema of `one` or `other`, not both and not none."""
    return {"oneOf": [_given(one, other), _given(other, one)]}


_AT_MOST_ONE_CONTENT: Any = {
    "anyOf": [{"properties": {"text": {"type": "null"}}}, {"properties": {"tokens": {"type": "null"}}}]
}

ItemId = Annotated[StrictStr, Field(min_length=1, max_length=settings.MAX_ID_CHARS)]
TokenId = Annotated[StrictInt, Field(ge=0, le=MAX_TOKEN_ID)]
TokenIds = Annotated[list[TokenId], BeforeValidator(_all_integral)]
Count = Annotated[StrictInt, Field(ge=0, le=MAX_INTEGER), BeforeValidator(_integral)]
Version = Annotated[StrictInt, Field(ge=-MAX_INTEGER, le=MAX_INTEGER), BeforeValidator(_integral)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Message(BaseModel):
    """One OpenAI chat message with a text."""

    model_config = ConfigDict(extra="allow")
    role: StrictStr
    content: StrictStr


class OpenBody(_Body):
    """Either `messages` or `prompt`, with the marker `{context}` exactly once."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [_OPEN_EXAMPLE], **_either("messages", "prompt")}
    )
    stream: Annotated[StrictStr, Field(pattern=STREAM_ID)] | None = Field(
        None, description="An id of your own, so that a retry opens nothing twice; else a new one."
    )
    messages: list[Message] | None = Field(None, min_length=1)
    prompt: StrictStr | None = None
    params: dict[str, Any] | None = Field(None, description="Sampling parameters by their OpenAI names.")
    options: dict[str, Any] | None = Field(
        None, description="`idle_timeout_ms`, `deadline_ms`, `on_timeout`, `separator`, `marker`."
    )

    def plain_messages(self) -> list[dict[str, Any]] | None:
        return None if self.messages is None else [message.model_dump() for message in self.messages]


class ChunkBody(_Body):
    """One chunk: `text`, or `tokens`."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"text": "First page.", "chunk": "p1"}], **_either("text", "tokens")},
    )
    text: StrictStr | None = None
    tokens: TokenIds | None = None
    chunk: ItemId | None = Field(None, description="A second chunk with the same id changes nothing.")


class ContextItemBody(_Body):
    """One item; without `text` it is one that was sent before."""

    id: ItemId
    text: StrictStr | None = None


class ContextBody(_Body):
    """The whole context, in order."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"context": [{"id": "a", "text": "Best hit."}, {"id": "b"}]}]}
    )
    context: list[ContextItemBody] = Field(max_length=settings.MAX_CONTEXT_ITEMS)
    version: Version | None = Field(
        None, description="An update whose version is not above the last one's changes nothing."
    )


class FinishBody(_Body):
    """The context is complete, perhaps with a last chunk."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=_AT_MOST_ONE_CONTENT)
    text: StrictStr | None = None
    tokens: TokenIds | None = None
    chunk: ItemId | None = None
    expect: Count | None = Field(None, description="Wait until so many chunks are there.")


class OpenOperation(OpenBody):
    op: Literal["open"]


class AppendOperation(ChunkBody):
    op: Literal["append"]


class UpdateOperation(ContextBody):
    op: Literal["update"]


class FinishOperation(FinishBody):
    op: Literal["finish"]


class CancelOperation(_Body):
    op: Literal["cancel"]


LaterOperation = Annotated[
    AppendOperation | UpdateOperation | FinishOperation | CancelOperation, Field(discriminator="op")
]
LATER_OPERATION: TypeAdapter[LaterOperation] = TypeAdapter(LaterOperation)


class Opened(BaseModel):
    stream: str
    ingress_id: str = Field(description="The entry's id in Redis; empty if the stream was open already.")
    events: str = Field(description="Path of the stream's events.")


class Accepted(BaseModel):
    """Written to ingress. What is found wrong with it later comes as an `error` event."""

    stream: str
    ingress_id: str = Field(description="The entry's id in Redis; empty if there was nothing left to do.")


class ErrorDetail(BaseModel):
    code: str
    message: str
    field: str | None
    request_id: str


class ErrorBody(BaseModel):
    error: ErrorDetail


class Health(BaseModel):
    status: Literal["ok", "starting", "redis_unreachable"]
