"""`stream2llm route`: the router."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from stream2llm import logs, settings
from stream2llm.connecting import BadRedisURL, RedisTLS, add_redis_arguments, connect, explained, shown_url
from stream2llm.entries import EntryRules
from stream2llm.keys import PoolKeys
from stream2llm.tracing.arguments import TracingSettings, add_tracing_arguments, tracing_from_arguments
from stream2llm_router.declaring import Declaration, parse_tenants
from stream2llm_router.gateway.arguments import HTTPArguments, add_http_arguments, http_from_arguments

logger = logging.getLogger(__name__)


class RouteCommand:
    help = "forward ingress entries to the pods that serve them"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_redis_arguments(parser, tenant=False)
        add_http_arguments(parser)
        parser.add_argument(
            "--retain-seconds",
            type=_positive,
            default=int(os.environ.get("STREAM2LLM_RETAIN_SECONDS", settings.RETAIN_S)),
            metavar="N",
            help=f"how long the reply of an ended stream is kept (default {settings.RETAIN_S})",
        )
        parser.add_argument(
            "--open-wait-seconds",
            type=_positive,
            default=int(os.environ.get("STREAM2LLM_OPEN_WAIT_SECONDS", settings.OPEN_WAIT_MS // 1000)),
            metavar="N",
            help=f"how long an open waits for a pod with room (default {settings.OPEN_WAIT_MS // 1000})",
        )
        parser.add_argument(
            "--start-wait-seconds",
            type=_positive,
            default=os.environ.get("STREAM2LLM_START_WAIT_SECONDS"),
            metavar="N",
            help="how long an open waits while there is no pod at all, as one may be starting (default: as if there "
            "were one)",
        )
        parser.add_argument(
            "--max-chunk-bytes",
            type=_chunk_bytes,
            default=os.environ.get("STREAM2LLM_MAX_CHUNK_BYTES", str(settings.MAX_CHUNK_BYTES)),
            metavar="N",
            help=f"longest chunk or context item that is taken, at most and by default {settings.MAX_CHUNK_BYTES}",
        )
        parser.add_argument(
            "--tenants-file",
            metavar="FILE",
            help="JSON list of tenants with name, weight and maxOpenStreams that are to be there; may change meanwhile",
        )
        logs.add_log_argument(parser)
        add_tracing_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        logs.show_logs(args.log_format)
        try:
            keys = PoolKeys(args.pool)
            client = connect(args.redis, args.redis_password_file, tls=RedisTLS.from_arguments(args), retries=0)
            http = http_from_arguments(args)
            tracing = tracing_from_arguments(args)
            if args.tenants_file:
                parse_tenants(Path(args.tenants_file).read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            kind = "" if isinstance(error, BadRedisURL) else "stream2llm route: "
            print(f"{kind}{error}", file=sys.stderr)
            return 2
        return _route(args, keys, client, http, tracing)


def _route(
    args: argparse.Namespace, keys: PoolKeys, client: Any, http: HTTPArguments, tracing: TracingSettings | None
) -> int:
    from prometheus_client import CollectorRegistry
    from redis.exceptions import AuthenticationError, RedisError, ResponseError

    from stream2llm.tracing.recording import OTLPTracer
    from stream2llm_router.forwarding import Forwarder
    from stream2llm_router.metrics import RouterMetrics
    from stream2llm_router.serving import CannotListen, make_server

    registry = CollectorRegistry()
    tracer = None if tracing is None else OTLPTracer(tracing, "stream2llm-router", {"stream2llm.pool": keys.pool})
    forwarder = Forwarder(
        client,
        keys,
        RouterMetrics(args.pool, registry),
        retain_s=args.retain_seconds,
        open_wait_ms=args.open_wait_seconds * 1000,
        start_wait_ms=max(args.start_wait_seconds or 0, args.open_wait_seconds) * 1000,
        declaration=Declaration(client, keys, Path(args.tenants_file)) if args.tenants_file else None,
        rules=EntryRules(max_chunk_bytes=args.max_chunk_bytes),
        tracer=tracer,
    )

    try:
        server = make_server(args, http, keys, registry, forwarder.status, forwarder.overview, forwarder.weight)
    except CannotListen as error:
        print(error, file=sys.stderr)
        return 1
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        policy = _eviction_policy(client)
        if policy != "noeviction":
            server.close()
            print(
                f"Redis has maxmemory-policy {policy}, which drops streams when memory is short; "
                "set it to noeviction (CONFIG SET maxmemory-policy noeviction, and in its configuration file)",
                file=sys.stderr,
            )
            return 1
    except ResponseError as error:
        logger.warning("maxmemory-policy cannot be checked (%s); it must be noeviction", error)
    except AuthenticationError as error:
        server.close()
        print(f"Redis at {shown_url(args.redis)}: {explained(error)}", file=sys.stderr)
        return 1
    except RedisError as error:
        logger.warning("Redis at %s cannot be reached yet, trying on: %s", shown_url(args.redis), error)
    server.start()
    logger.info("routing pool %s, http on %s:%d", args.pool, http.host, server.port)
    worker = threading.Thread(target=forwarder.run, args=(stop,), name="forwarding")
    worker.start()
    while worker.is_alive():
        worker.join(0.5)
    server.stop()
    if tracer is not None:
        tracer.close()
    return 0


def _eviction_policy(client: Any) -> str:
    """INFO rather than CONFIG: managed servers and restricted users often have no CONFIG."""
    return str(client.info("memory").get("maxmemory_policy", "noeviction"))


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def _chunk_bytes(text: str) -> int:
    value = int(text)
    if not 1 <= value <= settings.MAX_CHUNK_BYTES:
        raise argparse.ArgumentTypeError(f"must be from 1 to {settings.MAX_CHUNK_BYTES}, not {value}")
    return value


COMMAND = RouteCommand()
