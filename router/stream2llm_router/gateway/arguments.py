"""What `stream2llm route` can be told about HTTP. Imports nothing heavy: it is read for every `--help`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stream2llm_router.gateway.limits import Limits
from stream2llm_router.gateway.token_files import TokensFile

ADDRESS = "0.0.0.0:8080"
POD_API_KEY_VARIABLE = "STREAM2LLM_POD_API_KEY"
_DEFAULTS = Limits()


@dataclass(frozen=True, slots=True)
class HTTPArguments:
    """The arguments, read and checked. certificate: its file and its key's."""

    host: str
    port: int
    limits: Limits
    needs_tokens: bool
    tokens_from_file: Callable[[], dict[str, str]]
    certificate: tuple[str, str] | None
    pod_api_key: str | None
    pod_ca_file: str | None


def add_http_arguments(parser: argparse.ArgumentParser) -> None:
    def add(flag: str, default: object, metavar: str, text: str, kind: Callable[[str], object] = str) -> None:
        given = os.environ.get("STREAM2LLM_" + flag.lstrip("-").replace("-", "_").upper())
        # argparse reads a default that is a text as it reads an argument.
        parser.add_argument(flag, default=given or default, metavar=metavar, type=kind, help=text)

    add("--http", ADDRESS, "ADDR", f"address of the HTTP endpoints, HOST:PORT (default {ADDRESS})")
    add("--http-auth", "tokens", "KIND", "tokens: bearer tokens (default); none: everybody is the default tenant")
    add(
        "--http-tokens-file",
        None,
        "FILE",
        "tokens besides those in Redis, a line TENANT:SHA256 each",
    )
    add("--http-cert-file", None, "FILE", "certificate of the HTTP server, for HTTPS")
    add("--http-key-file", None, "FILE", "its private key")
    for flag, default, text in (
        ("--http-max-body-bytes", _DEFAULTS.max_body_bytes, "longest request body"),
        ("--http-max-buffered-bytes", _DEFAULTS.max_buffered_bytes, "request bodies in memory at a time"),
        ("--http-max-open-streams", _DEFAULTS.max_open_streams, "open streams of a tenant"),
        ("--http-max-readers", _DEFAULTS.max_readers, "replies a tenant reads at a time"),
        ("--http-max-requests", _DEFAULTS.max_requests, "requests of a tenant to the pods at a time"),
    ):
        add(flag, default, "N", f"{text} (default {default})", _positive)
    add("--pod-api-key-file", None, "FILE", f"what the pods' --api-key wants; or the variable {POD_API_KEY_VARIABLE}")
    add("--pod-ca-file", None, "FILE", "authorities of the pods' certificates, where pods speak TLS")


def http_from_arguments(args: argparse.Namespace) -> HTTPArguments:
    """Raises ValueError or OSError for what cannot be used."""
    host, port = _address(args.http)
    if args.http_auth not in ("tokens", "none"):
        raise ValueError(f"--http-auth must be tokens or none, not {args.http_auth!r}")
    if bool(args.http_cert_file) != bool(args.http_key_file):
        raise ValueError("HTTPS needs both --http-cert-file and --http-key-file")
    api_key = os.environ.get(POD_API_KEY_VARIABLE) or None
    if args.pod_api_key_file:
        api_key = Path(args.pod_api_key_file).read_text(encoding="utf-8").strip()
    return HTTPArguments(
        host,
        port,
        Limits(
            args.http_max_body_bytes,
            args.http_max_buffered_bytes,
            args.http_max_open_streams,
            args.http_max_readers,
            args.http_max_requests,
        ),
        args.http_auth == "tokens",
        TokensFile(args.http_tokens_file) if args.http_tokens_file else dict,
        (args.http_cert_file, args.http_key_file) if args.http_cert_file else None,
        api_key,
        args.pod_ca_file,
    )


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65_536):
        raise ValueError(f"--http {text!r} must be HOST:PORT, with a port from 0 to 65535")
    return host.strip("[]") or "0.0.0.0", int(port)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value
