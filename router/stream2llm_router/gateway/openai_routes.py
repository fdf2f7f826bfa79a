"""The pods' OpenAI endpoints, under the same tokens and limits."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import httpx
from fastapi import APIRouter, Body, Request, Response

from stream2llm.heartbeats import Pod
from stream2llm.tenant_limits import TENANT_ARGUMENT, WEIGHT_ARGUMENT
from stream2llm_router.gateway.dependencies import GatewayOf, TenantOf, problems
from stream2llm_router.gateway.event_streams import GuardedStream, dumped
from stream2llm_router.gateway.gateway import Gateway
from stream2llm_router.gateway.problems import Problem

router = APIRouter(tags=["openai"])
FORWARDED_HEADERS = ("accept", "traceparent", "tracestate")
MAX_TRIES = 3
_SALTED = ("/v1/chat/completions", "/v1/completions")
_NO_ROOM = "no pod is ready; try again later"
_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"description": "What the pod answers.", "content": {"application/json": {}, "text/event-stream": {}}}
}
_RESPONSES = {**_ANSWER, **problems(404, 413, 422, 429, 502)}

Payload = Annotated[dict[str, Any], Body(examples=[{"messages": [{"role": "user", "content": "Hello"}]}])]


@router.get("/v1/models", response_class=Response, responses=_RESPONSES, summary="The models that are served")
async def models(request: Request, gateway: GatewayOf, tenant: TenantOf) -> Response:
    return await _pass_on(request, gateway, tenant, None)


@router.post("/v1/chat/completions", response_class=Response, responses=_RESPONSES, summary="As vLLM's")
async def chat_completions(request: Request, payload: Payload, gateway: GatewayOf, tenant: TenantOf) -> Response:
    return await _pass_on(request, gateway, tenant, payload)


@router.post("/v1/completions", response_class=Response, responses=_RESPONSES, summary="As vLLM's")
async def completions(request: Request, payload: Payload, gateway: GatewayOf, tenant: TenantOf) -> Response:
    return await _pass_on(request, gateway, tenant, payload)


@router.post("/v1/embeddings", response_class=Response, responses=_RESPONSES, summary="As vLLM's")
async def embeddings(request: Request, payload: Payload, gateway: GatewayOf, tenant: TenantOf) -> Response:
    return await _pass_on(request, gateway, tenant, payload)


def tenants_payload(path: str, payload: dict[str, Any], tenant: str, weight: float = 1.0) -> dict[str, Any]:
    """The request as the tenant may make it. Raises Problem.

    The cache salt keeps one tenant from learning by timing what another has asked; it is the one that streams have. The
    engine is told whose the request is, so that it counts as the tenant's.
    Request ids are the pods' own, or one tenant could take another's.
    """
    if payload.get("kv_transfer_params") is not None:
        raise Problem(422, "unsupported_params", "kv_transfer_params is not for clients", field="kv_transfer_params")
    own = {name: value for name, value in payload.items() if name != "request_id"}
    if path in _SALTED:
        salt = payload.get("cache_salt")
        if not isinstance(salt, str | None):
            raise Problem(422, "invalid_params", "cache_salt must be a text", field="cache_salt")
        own["cache_salt"] = f"{tenant}:{salt}" if salt else tenant
        # What is no object is left to the pod to refuse.
        if isinstance(xargs := payload.get("vllm_xargs") or {}, dict):
            own["vllm_xargs"] = {**xargs, TENANT_ARGUMENT: tenant, WEIGHT_ARGUMENT: weight}
    return own


async def _pass_on(request: Request, gateway: Gateway, tenant: str, payload: dict[str, Any] | None) -> Response:
    path = request.url.path
    content = None
    if payload is not None:
        try:
            content = dumped(tenants_payload(path, payload, tenant, gateway.weight(tenant)))
        except (ValueError, RecursionError) as error:
            raise Problem(422, "malformed", f"the body cannot be passed on: {error}") from None
    gateway.requests.take(tenant)
    try:
        pod, answer = await _asked(request, gateway, content, str((payload or {}).get("model") or ""))
    except BaseException:
        gateway.requests.give_back(tenant)
        raise

    async def closed() -> None:
        gateway.requests.give_back(tenant)
        gateway.pods.in_flight[pod.url] -= 1
        await answer.aclose()

    return GuardedStream(
        _pieces(answer),
        closed=closed,
        status=answer.status_code,
        media_type=None,
        headers={"Content-Type": answer.headers.get("content-type", "application/octet-stream")},
    )


async def _asked(request: Request, gateway: Gateway, content: bytes | None, model: str) -> tuple[Pod, httpx.Response]:
    """The pod that answers, and its answer up to the headers. Only what no pod has seen is sent again."""
    failed: set[str] = set()
    for _ in range(MAX_TRIES):
        pod = await gateway.pods.choose(model, failed)
        if pod is None:
            break
        gateway.pods.in_flight[pod.url] += 1
        try:
            return pod, await gateway.upstream.send(_request(request, gateway, pod, content), stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            gateway.pods.in_flight[pod.url] -= 1
            failed.add(pod.url)
        except httpx.HTTPError as error:
            gateway.pods.in_flight[pod.url] -= 1
            raise Problem(502, "pod_failed", f"pod {pod.name} broke off: {type(error).__name__}") from error
        except BaseException:
            gateway.pods.in_flight[pod.url] -= 1
            raise
    raise Problem(503, "overloaded", _NO_ROOM, retry_after_s=2)


def _request(request: Request, gateway: Gateway, pod: Pod, content: bytes | None) -> httpx.Request:
    headers = {name: request.headers[name] for name in FORWARDED_HEADERS if name in request.headers}
    # vLLM takes this as the id of its own request, which two requests must not share.
    headers["X-Request-Id"] = f"{request.state.request_id}-{secrets.token_hex(4)}"
    headers["Accept-Encoding"] = "identity"
    if content is not None:
        headers["Content-Type"] = "application/json"
    if gateway.settings.pod_api_key:
        headers["Authorization"] = f"Bearer {gateway.settings.pod_api_key}"
    url = pod.url.rstrip("/") + request.url.path
    return gateway.upstream.build_request(request.method, url, headers=headers, content=content)


async def _pieces(answer: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The body as it comes. A pod that breaks off breaks the answer off, so that nobody takes it for whole."""
    async for piece in answer.aiter_raw():
        yield piece
