"""The endpoints of streams, one call each."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response

from stream2llm.composing import append_fields, cancel_fields, finish_fields, new_id, open_fields, update_fields
from stream2llm.errors import Stream2LLMError
from stream2llm.following import START
from stream2llm.tracing.identity import parse_traceparent
from stream2llm_router.gateway.bodies import Accepted, ChunkBody, ContextBody, FinishBody, OpenBody, Opened
from stream2llm_router.gateway.dependencies import GatewayOf, StreamName, TenantOf, problems
from stream2llm_router.gateway.event_streams import (
    COMMENT,
    HELLO,
    MEDIA_TYPE,
    SILENCE_S,
    GuardedStream,
    frame_of,
)
from stream2llm_router.gateway.gateway import Gateway
from stream2llm_router.gateway.problems import Problem
from stream2llm_router.gateway.streams import RawEvent

router = APIRouter(tags=["streams"])
EVENT_ID = r"^(0|[0-9]{1,20}-[0-9]{1,20})$"

EVENT_SCHEMA = {
    "description": "One event; `data` is a JSON object, as in docs/wire-protocol.md.",
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string"},
        "data": {"type": "string", "contentMediaType": "application/json"},
        "retry": {"type": "integer"},
    },
}
EVENTS_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Reply events up to the terminal one; each event's id is where to resume.",
        "content": {MEDIA_TYPE: {"schema": EVENT_SCHEMA}},
    }
}


def events_path(stream: str) -> str:
    return f"/v1/streams/{stream}/events"


def fields_of_open(request: Request, body: OpenBody) -> tuple[str, dict[bytes, bytes]]:
    """The stream's id, which the request is known by from now on, and the entry. Raises StreamError."""
    stream = new_id() if body.stream is None else body.stream
    request.state.stream = stream
    given = request.headers.get("traceparent", "")
    traceparent = given if parse_traceparent(given) else ""
    return stream, open_fields(stream, body.plain_messages(), body.prompt, body.params, body.options, traceparent)


def _linked(*operations: str) -> dict[str, Any]:
    """OpenAPI links: what can be done with an opened stream."""
    return {name: {"operationId": name, "parameters": {"stream": "$response.body#/stream"}} for name in operations}


@router.post(
    "/v1/streams",
    status_code=201,
    responses={
        201: {"description": "Opened.", "links": _linked("append", "update", "finish", "cancel")},
        **problems(409, 413, 415, 422, 429),
    },
    summary="Open a stream",
)
async def open_stream(
    request: Request, body: OpenBody, gateway: GatewayOf, tenant: TenantOf, response: Response
) -> Opened:
    """The part of the prompt before the marker is prefilled from now on."""
    stream, fields = fields_of_open(request, body)
    ingress_id = await gateway.open(tenant, stream, fields)
    response.headers["Location"] = events_path(stream)
    return Opened(stream=stream, ingress_id=ingress_id, events=events_path(stream))


@router.post(
    "/v1/streams/{stream}/chunks",
    status_code=202,
    responses=problems(404, 409, 413, 415, 422),
    summary="Append a chunk",
)
async def append(stream: StreamName, body: ChunkBody, gateway: GatewayOf, tenant: TenantOf) -> Accepted:
    fields = append_fields(stream, body.text, body.tokens, body.chunk)
    return Accepted(stream=stream, ingress_id=await gateway.streams.enqueue(tenant, fields))


@router.put(
    "/v1/streams/{stream}/context",
    status_code=202,
    responses=problems(404, 409, 413, 415, 422),
    summary="Replace the context",
)
async def update(stream: StreamName, body: ContextBody, gateway: GatewayOf, tenant: TenantOf) -> Accepted:
    """The KV cache of what stays the same in front is kept."""
    fields = update_fields(stream, [item.model_dump() for item in body.context], body.version)
    return Accepted(stream=stream, ingress_id=await gateway.streams.enqueue(tenant, fields))


@router.post(
    "/v1/streams/{stream}/finish",
    status_code=202,
    responses=problems(404, 409, 413, 415, 422),
    summary="Finish the context",
)
async def finish(stream: StreamName, gateway: GatewayOf, tenant: TenantOf, body: FinishBody | None = None) -> Accepted:
    """Then the answer is generated. A body is needed for a last chunk or `expect` only."""
    last = body or FinishBody.model_validate({})
    fields = finish_fields(stream, last.text, last.tokens, last.chunk, last.expect)
    return Accepted(stream=stream, ingress_id=await gateway.streams.enqueue(tenant, fields))


@router.delete("/v1/streams/{stream}", status_code=202, responses=problems(404, 409, 422), summary="Cancel a stream")
async def cancel(stream: StreamName, gateway: GatewayOf, tenant: TenantOf) -> Accepted:
    """Its reply gets `done` with the reason `cancelled`. One that has ended stays as it is."""
    return Accepted(stream=stream, ingress_id=await gateway.streams.enqueue(tenant, cancel_fields(stream)))


@router.get(
    "/v1/streams/{stream}/events",
    response_class=Response,
    responses={
        **EVENTS_RESPONSE,
        204: {"description": "All events up to the terminal one have been read."},
        **problems(410, 422, 429),
    },
    summary="Read the reply",
)
async def events(
    stream: StreamName,
    gateway: GatewayOf,
    tenant: TenantOf,
    last_event_id: Annotated[
        str, Header(pattern=EVENT_ID, description="Resume after this event.", examples=["1764482400000-0"])
    ] = START,
) -> Response:
    """Server-sent events. A reader that was cut off comes back with `Last-Event-ID` and misses nothing."""
    key = gateway.keys.reply(tenant, stream)
    first = await gateway.streams.read(key, last_event_id)
    if not first:
        found = await gateway.streams.find(tenant, stream)
        if found.unknown or (not found.has_reply and (last_event_id != START or found.state == "ended")):
            raise Problem(410, "reply_gone", f"stream {stream!r} has no reply: it has expired, or was never opened")
        if found.state == "ended":
            # What came between the two questions is there by now.
            first = await gateway.streams.read(key, last_event_id)
            if not first:
                return Response(status_code=204)
    gateway.readers.take(tenant)
    return GuardedStream(
        reply_frames(gateway, tenant, stream, last_event_id, first), closed=lambda: gateway.readers.give_back(tenant)
    )


async def reply_frames(
    gateway: Gateway, tenant: str, stream: str, place: str, first: list[RawEvent]
) -> AsyncGenerator[bytes, None]:
    """The frames of a reply from `place` on, of which `first` are read already, up to the terminal event.

    Ends early when the router stops, the reply expires or Redis stays away: the reader may come back then.
    """
    yield HELLO
    key = gateway.keys.reply(tenant, stream)
    if first:
        frames, over = _frames(first)
        yield frames
        place = first[-1][0].decode()
        if over:
            gateway.open_streams.discard(tenant, stream)
            return
    try:
        async with aclosing(gateway.hub.follow(key, place, SILENCE_S)) as batches:
            async for batch in batches:
                last = False
                if not batch:
                    last = not (await gateway.streams.find(tenant, stream)).may_go_on
                    # What came between the two questions is there by now.
                    batch = await gateway.streams.read(key, place) if last else []
                frames, over = _frames(batch)
                yield frames or COMMENT
                if over or last:
                    gateway.open_streams.discard(tenant, stream)
                    return
                if batch:
                    place = batch[-1][0].decode()
    except Stream2LLMError:
        return


def _frames(events: list[RawEvent]) -> tuple[bytes, bool]:
    """The events up to a terminal one, and whether there is one."""
    frames: list[bytes] = []
    for event in events:
        frame, over = frame_of(event)
        frames.append(frame)
        if over:
            return b"".join(frames), True
    return b"".join(frames), False
