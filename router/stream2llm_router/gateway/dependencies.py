"""What every route asks for: the gateway, and whose request it is."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from stream2llm.errors import Stream2LLMError
from stream2llm_router.gateway.bodies import STREAM_ID, ErrorBody
from stream2llm_router.gateway.gateway import Gateway
from stream2llm_router.gateway.problems import problem_of

_bearer = HTTPBearer(auto_error=False, description="`stream2llm tenant token TENANT` makes one.")
_MEANINGS = {
    400: "The request cannot be read.",
    401: "No bearer token that is known.",
    403: "The token's tenant is not served.",
    404: "No such stream.",
    408: "The body stopped coming.",
    409: "The stream's state does not allow it.",
    410: "The reply has expired, or there never was one.",
    413: "Too large.",
    415: "The body is not said to be JSON.",
    422: "A field is wrong.",
    429: "The tenant holds all that it may at a time.",
    500: "A mistake of the router.",
    502: "The pod's answer broke off.",
    503: "Redis or all pods are out of reach, or too busy.",
}
ALWAYS = (400, 401, 403, 500, 503)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: these errors, and those that every route may give."""
    return {status: {"model": ErrorBody, "description": _MEANINGS[status]} for status in sorted({*ALWAYS, *statuses})}


def gateway_of(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


async def tenant_of(
    request: Request,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> str:
    """Raises Problem."""
    try:
        tenant = await gateway_of(request).authenticator.tenant(credentials.credentials if credentials else None)
    except Stream2LLMError as error:
        raise problem_of(error) from error
    request.state.tenant = tenant
    return tenant


GatewayOf = Annotated[Gateway, Depends(gateway_of)]
TenantOf = Annotated[str, Depends(tenant_of)]
StreamName = Annotated[str, Path(pattern=STREAM_ID, description="Stream id.", examples=["q1"])]
