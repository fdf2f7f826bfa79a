"""The ASGI application: routes, and errors in one shape."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException as StarletteHTTPException

from stream2llm.errors import ErrorCode, Stream2LLMError
from stream2llm_router.gateway import openai_routes, running, status_routes, stream_routes
from stream2llm_router.gateway.explaining import explain, field_of
from stream2llm_router.gateway.gateway import Gateway
from stream2llm_router.gateway.limits import LimitReached
from stream2llm_router.gateway.problems import Problem, problem_of
from stream2llm_router.gateway.requests import BodyLimits, RequestLog, request_id

_PATTERNS = {stream_routes.EVENT_ID: "is no event id; they look like 1764482400000-0, and 0 is the beginning"}
_CODES = {404: "not_found", 405: "method_not_allowed"}


def make_app(gateway: Gateway, registry: CollectorRegistry) -> FastAPI:
    """The application. Its OpenAPI document is at /openapi.json."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with gateway.running():
            yield

    app = FastAPI(
        title="Stream2LLM",
        version=version("stream2llm"),
        description="Streams whose prompts are still arriving, and the pods' OpenAI endpoints.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
        exception_handlers={
            StarletteHTTPException: _told,
            HTTPException: _told,
            RequestValidationError: _invalid,
            Stream2LLMError: _failed,
            RedisError: _failed,
            LimitReached: _failed,
        },
    )
    app.state.gateway, app.state.registry = gateway, registry
    for part in (stream_routes, running, openai_routes, status_routes):
        app.include_router(part.router)
    app.add_middleware(BodyLimits, limits=gateway.settings.limits, free=[running.RUN_PATH])
    app.add_middleware(RequestLog, metrics=gateway.metrics)
    gateway.metrics.expect([route.path for route in app.routes if isinstance(route, APIRoute)])
    return app


def _response(request: Request, problem: Problem) -> JSONResponse:
    return JSONResponse(problem.body(request_id(request.scope)), problem.status_code, headers=problem.headers)


async def _told(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    if isinstance(error, Problem):
        return _response(request, error)
    problem = Problem(error.status_code, _CODES.get(error.status_code, "malformed"), str(error.detail))
    problem.headers = {**(problem.headers or {}), **(error.headers or {})}
    return _response(request, problem)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """What does not fit the schema."""
    assert isinstance(error, RequestValidationError)
    first: dict[str, Any] = error.errors()[0]
    if first["type"] == "json_invalid":
        return _response(request, Problem(400, str(ErrorCode.MALFORMED), "the body is not JSON"))
    given = request.headers.get("content-type", "")
    # A body that is not said to be JSON is left as bytes.
    if isinstance(first.get("input"), bytes) and not _is_json(given):
        shown = given.partition(";")[0][:60] or "missing"
        message = f"the body must come with Content-Type: application/json, which is {shown}"
        return _response(request, Problem(415, "unsupported_media_type", message))
    problem = Problem(422, str(ErrorCode.MALFORMED), explain(first, patterns=_PATTERNS), field=field_of(first))
    return _response(request, problem)


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


async def _failed(request: Request, error: Exception) -> JSONResponse:
    return _response(request, problem_of(error))
