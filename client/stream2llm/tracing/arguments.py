"""Command line and environment of tracing."""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import dataclass
from importlib.util import find_spec
from urllib.parse import urlsplit


class CannotTrace(ValueError):
    """Traces were asked for and cannot be made, with what to do about it."""


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """endpoint: where spans go, OTLP over HTTP, such as `http://collector:4318/v1/traces`."""

    endpoint: str
    percent: float = 100.0


def add_tracing_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--traces-endpoint",
        default=os.environ.get("STREAM2LLM_TRACES_ENDPOINT") or None,
        metavar="URL",
        help="send OpenTelemetry traces there, by OTLP over HTTP (http://collector:4318/v1/traces; default: none)",
    )
    parser.add_argument(
        "--traces-percent",
        default=os.environ.get("STREAM2LLM_TRACES_PERCENT", "100"),
        metavar="N",
        help="of a hundred streams whose opener did not choose, so many are traced (default 100)",
    )


def tracing_from_arguments(args: argparse.Namespace) -> TracingSettings | None:
    """None if no traces are wanted. Raises CannotTrace."""
    if args.traces_endpoint is None:
        return None
    parts = urlsplit(args.traces_endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CannotTrace(
            f"--traces-endpoint {_without_secrets(args.traces_endpoint)!r} must be a URL such as "
            "http://collector:4318/v1/traces"
        )
    if parts.username or parts.password:
        raise CannotTrace("--traces-endpoint holds a user or password: give OTEL_EXPORTER_OTLP_HEADERS instead")
    try:
        percent = float(args.traces_percent)
    except ValueError:
        percent = math.nan
    if not 0 <= percent <= 100:
        raise CannotTrace(f"--traces-percent {args.traces_percent!r} must be a number from 0 to 100")
    try:
        found = find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise CannotTrace("--traces-endpoint needs OpenTelemetry: install stream2llm[tracing]")
    return TracingSettings(args.traces_endpoint, percent)


def _without_secrets(url: str) -> str:
    return url.rpartition("@")[2]
