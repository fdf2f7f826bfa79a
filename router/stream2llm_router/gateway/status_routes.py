"""What machines ask: health, status and metrics. No token is needed, and Redis is never waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from stream2llm_router.gateway.bodies import Health
from stream2llm_router.gateway.dependencies import GatewayOf

DASHBOARD = (Path(__file__).parent / "page" / "dashboard.html").read_text(encoding="utf-8")
# The page loads nothing from anywhere, and asks nobody but this router.
POLICY = (
    "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
router = APIRouter(tags=["operations"])


@router.get("/health", responses={503: {"model": Health, "description": "Redis is not reached, or not yet."}})
async def health(gateway: GatewayOf, response: Response) -> Health:
    reachable = gateway.status()["redis_reachable"]
    if reachable:
        return Health(status="ok")
    response.status_code = 503
    return Health(status="starting" if reachable is None else "redis_unreachable")


@router.get("/status.json")
async def status(gateway: GatewayOf) -> dict[str, Any]:
    """Open streams, leases, pods, and whether Redis is reachable (null before it was tried)."""
    return gateway.status()


@router.get("/overview.json")
async def overview(gateway: GatewayOf) -> dict[str, Any]:
    """Pods and tenants as they were last seen, for people who watch the pool."""
    return gateway.overview()


@router.get("/dashboard", response_class=HTMLResponse)
async def dashboard() -> HTMLResponse:
    """A page that shows the overview as it changes. Read-only."""
    return HTMLResponse(DASHBOARD, headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"})


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(gateway: GatewayOf, request: Request) -> Response:
    registry: CollectorRegistry = request.app.state.registry
    gateway.metrics.readers.set(gateway.readers.total)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
