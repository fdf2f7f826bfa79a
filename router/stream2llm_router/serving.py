"""The router's HTTP surface, made from its arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry

from stream2llm.connecting import RedisTLS, connect_async
from stream2llm.keys import PoolKeys
from stream2llm.overview.reading import Overview
from stream2llm_router.gateway.app import make_app
from stream2llm_router.gateway.arguments import HTTPArguments
from stream2llm_router.gateway.gateway import Gateway, GatewaySettings
from stream2llm_router.gateway.metrics import GatewayMetrics
from stream2llm_router.gateway.server import Certificate, Server, show_access_log


class CannotListen(Exception):
    """The server cannot be started, with the reason."""


def make_server(
    args: argparse.Namespace,
    http: HTTPArguments,
    keys: PoolKeys,
    registry: CollectorRegistry,
    status: Callable[[], dict[str, Any]],
    overview: Callable[[], Overview],
    weight: Callable[[str], float],
) -> Server:
    """A server that listens and is not started. Raises CannotListen."""

    def connect() -> Any:
        return connect_async(args.redis, args.redis_password_file, tls=RedisTLS.from_arguments(args), retries=0)

    settings = GatewaySettings(
        http.limits, http.needs_tokens, http.tokens_from_file, http.pod_api_key, http.pod_ca_file
    )
    gateway = Gateway(settings, keys, connect, status, overview, GatewayMetrics(keys.pool, registry), weight)
    certificate = Certificate(*http.certificate) if http.certificate else None
    show_access_log()
    try:
        return Server(make_app(gateway, registry), gateway, (http.host, http.port), certificate)
    except OSError as error:
        reason = error.strerror or error
        raise CannotListen(f"cannot listen on {http.host}:{http.port}: {reason}; choose another with --http") from error
