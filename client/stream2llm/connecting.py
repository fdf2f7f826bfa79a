"""Connections to Redis from a URL, the same way in every program."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.exceptions
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from stream2llm import settings
from stream2llm.keys import DEFAULT_POOL, DEFAULT_TENANT
from stream2llm.owning import (
    Address,
    AsyncOwnedConnection,
    AsyncOwnedSSLConnection,
    OwnedConnection,
    OwnedSSLConnection,
    Owner,
)

DEFAULT_URL = "redis://127.0.0.1:6379"
URL_VARIABLE, PASSWORD_VARIABLE = "STREAM2LLM_REDIS", "STREAM2LLM_REDIS_PASSWORD"


SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
CA_FILE_VARIABLE = "STREAM2LLM_REDIS_CA_FILE"
CERT_FILE_VARIABLE = "STREAM2LLM_REDIS_CERT_FILE"
KEY_FILE_VARIABLE = "STREAM2LLM_REDIS_KEY_FILE"


class BadRedisURL(ValueError):
    """A URL that cannot be used, with the reason."""


@dataclass(frozen=True, slots=True)
class RedisTLS:
    """PEM files for `rediss://`. Without any, the system's authorities are trusted and no certificate is shown.

    ca_file: the authorities that may have signed the server's certificate; cert_file, key_file: our own certificate.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @classmethod
    def from_environment(cls) -> RedisTLS:
        names = (CA_FILE_VARIABLE, CERT_FILE_VARIABLE, KEY_FILE_VARIABLE)
        return cls(*(os.environ.get(name) or None for name in names))

    @classmethod
    def from_arguments(cls, args: argparse.Namespace) -> RedisTLS:
        return cls(args.redis_ca_file, args.redis_cert_file, args.redis_key_file)

    def options(self, url: str) -> dict[str, Any]:
        """What the Redis client is told. Raises OSError for an unreadable file, BadRedisURL for one of no use.

        A file that was silently left out would mean a connection without encryption.
        """
        files = {"ssl_ca_certs": self.ca_file, "ssl_certfile": self.cert_file, "ssl_keyfile": self.key_file}
        chosen = {name: file for name, file in files.items() if file}
        if chosen and not url.startswith("rediss"):
            raise BadRedisURL(
                f"certificates are for rediss://, and the Redis URL begins with {urlsplit(url).scheme}://"
            )
        if bool(self.cert_file) != bool(self.key_file):
            raise BadRedisURL("a client certificate needs both --redis-cert-file and --redis-key-file")
        for file in chosen.values():
            with Path(file).open("rb"):
                pass
        return chosen


def add_redis_arguments(parser: argparse.ArgumentParser, *, tenant: bool = True) -> None:
    """Add --redis, --redis-password-file, --pool and, if asked for, --tenant."""
    parser.add_argument(
        "--redis",
        default=os.environ.get(URL_VARIABLE, DEFAULT_URL),
        metavar="URL",
        help="redis://HOST:PORT, redis+sentinel://HOST:PORT,HOST:PORT/MASTER or redis+cluster://HOST:PORT,HOST:PORT; "
        f"rediss… for TLS (environment {URL_VARIABLE}; default {DEFAULT_URL})",
    )
    parser.add_argument(
        "--redis-password-file",
        metavar="FILE",
        help=f"file with the password; or the environment variable {PASSWORD_VARIABLE}. Never in the URL",
    )
    for flag, variable, what in (
        (
            "--redis-ca-file",
            CA_FILE_VARIABLE,
            "authorities that Redis's certificate may come from (default: the system's)",
        ),
        ("--redis-cert-file", CERT_FILE_VARIABLE, "our own certificate, if Redis asks for one"),
        ("--redis-key-file", KEY_FILE_VARIABLE, "its private key"),
    ):
        parser.add_argument(
            flag, default=os.environ.get(variable) or None, metavar="FILE", help=f"for rediss://: {what}"
        )
    parser.add_argument(
        "--pool", default=os.environ.get("STREAM2LLM_POOL", DEFAULT_POOL), metavar="NS/NAME", help="pool of pods"
    )
    if tenant:
        parser.add_argument("--tenant", default=os.environ.get("STREAM2LLM_TENANT", DEFAULT_TENANT), help="tenant")


def check_url(url: str, *, allow_password: bool = False) -> str:
    """Return `url`, or raise BadRedisURL: an unknown scheme, or a password that shows in process lists.

    A password may be in a URL that comes from the environment, or from a program (`allow_password`).
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        # The rest is not shown: it may hold a password.
        begins = f"{parts.scheme}:" if parts.scheme else "with no scheme at all"
        raise BadRedisURL(f"a Redis URL must begin with redis:// or rediss://, not {begins}")
    if "+" in parts.scheme:
        _nodes(url)
    if allow_password or url == os.environ.get(URL_VARIABLE):
        return url
    if parts.password or "password" in parse_qs(parts.query):
        raise BadRedisURL(
            f"a password in the Redis URL shows in process lists; use {PASSWORD_VARIABLE} or --redis-password-file"
        )
    return url


@dataclass(frozen=True, slots=True)
class _Nodes:
    """What a URL of several nodes says."""

    kind: str
    tls: bool
    addresses: list[Address]
    master: str
    login: dict[str, Any]


def _nodes(url: str) -> _Nodes:
    """Read `redis+sentinel://` and `redis+cluster://`. Raises BadRedisURL."""
    parts = urlsplit(url)
    scheme, _, kind = parts.scheme.partition("+")
    login, _, places = parts.netloc.rpartition("@")
    addresses = []
    for place in places.split(","):
        host, _, port = place.rpartition(":") if place.rpartition(":")[2].isdigit() else (place, "", "")
        if not host:
            raise BadRedisURL(f"{parts.scheme}:// needs HOST:PORT, several of them separated by commas, not {place!r}")
        addresses.append((host.strip("[]"), int(port or (26379 if kind == "sentinel" else 6379))))
    master = parts.path.strip("/")
    if (kind == "sentinel") != bool(master) or "/" in master:
        wanted = "the master's name after the hosts, as /mymaster" if kind == "sentinel" else "no path"
        raise BadRedisURL(f"{parts.scheme}:// needs {wanted}, not {parts.path!r}")
    user, _, password = login.partition(":")
    given = {"username": unquote(user), "password": unquote(password)}
    return _Nodes(kind, scheme == "rediss", addresses, master, {name: text for name, text in given.items() if text})


def shown_url(url: str) -> str:
    """The URL as it may be logged: without a password that it may have brought from the environment."""
    scheme, separator, rest = url.partition("://")
    return scheme + separator + rest.partition("?")[0].rpartition("@")[2]


def read_password(password_file: str | None) -> str | None:
    """The password from the file, else from the environment, else None."""
    if password_file:
        return Path(password_file).read_text().rstrip("\n")
    return os.environ.get(PASSWORD_VARIABLE) or None


def explained(error: Exception) -> str:
    """What a Redis client has raised, with the remedy where the server refuses the login."""
    if isinstance(error, redis.exceptions.AuthenticationError):
        return (
            f"the login is refused: {error}; the password comes from {PASSWORD_VARIABLE} or --redis-password-file, "
            "the user from the URL (redis://USER@HOST)"
        )
    return str(error)


_SENTINEL_OPTIONS = {"socket_timeout": 5.0}
# Pinned, because the defaults differ between versions of the Redis client.
_OPTIONS: dict[str, Any] = {
    "protocol": 2,
    "decode_responses": False,
    "socket_timeout": settings.SOCKET_TIMEOUT_S,
    "socket_connect_timeout": 5.0,
    "health_check_interval": 30,
}


def connect(
    url: str,
    password_file: str | None = None,
    *,
    tls: RedisTLS | None = None,
    retries: int = 3,
    allow_password: bool = False,
) -> redis.Redis:
    """A client for blocking use. Retries are pinned, since a retried write may be done twice; 0 for none.

    tls: None for what the environment names. Raises BadRedisURL or OSError; connects with the first command only.
    """
    check_url(url, allow_password=allow_password)
    retry = Retry(ExponentialBackoff(cap=1.0, base=0.05), retries)
    options = {"password": read_password(password_file), "retry": retry, **_tls_options(url, tls), **_OPTIONS}
    client: redis.Redis
    if "+" not in urlsplit(url).scheme:
        client = redis.Redis.from_url(url, **options)
        return client
    nodes = _nodes(url)
    options |= nodes.login
    if nodes.kind == "sentinel":
        sentinel = redis.sentinel.Sentinel(  # type: ignore[no-untyped-call]
            nodes.addresses, sentinel_kwargs=_SENTINEL_OPTIONS, ssl=nodes.tls, **options
        )
        client = sentinel.master_for(nodes.master)  # type: ignore[no-untyped-call]
        return client
    connection = OwnedSSLConnection if nodes.tls else OwnedConnection
    pool = redis.ConnectionPool(connection_class=connection, owner=Owner(nodes.addresses), **options)
    return redis.Redis(connection_pool=pool)


def connect_async(
    url: str,
    password_file: str | None = None,
    *,
    tls: RedisTLS | None = None,
    retries: int = 3,
    allow_password: bool = False,
) -> redis.asyncio.Redis:
    """As `connect`, for asyncio."""
    check_url(url, allow_password=allow_password)
    retry = AsyncRetry(ExponentialBackoff(cap=1.0, base=0.05), retries)
    options = {"password": read_password(password_file), "retry": retry, **_tls_options(url, tls), **_OPTIONS}
    client: redis.asyncio.Redis
    if "+" not in urlsplit(url).scheme:
        client = redis.asyncio.Redis.from_url(url, **options)
        return client
    nodes = _nodes(url)
    options |= nodes.login
    if nodes.kind == "sentinel":
        sentinel = redis.asyncio.sentinel.Sentinel(  # type: ignore[no-untyped-call]
            nodes.addresses, sentinel_kwargs=_SENTINEL_OPTIONS, ssl=nodes.tls, **options
        )
        client = sentinel.master_for(nodes.master)  # type: ignore[no-untyped-call]
        return client
    connection = AsyncOwnedSSLConnection if nodes.tls else AsyncOwnedConnection
    pool = redis.asyncio.ConnectionPool(connection_class=connection, owner=Owner(nodes.addresses), **options)
    return redis.asyncio.Redis(connection_pool=pool)


def _tls_options(url: str, tls: RedisTLS | None) -> dict[str, Any]:
    return (RedisTLS.from_environment() if tls is None else tls).options(url)


def check_answers_bytes(client: redis.Redis | redis.asyncio.Redis) -> None:
    """Raises ValueError for a client that decodes: chunks and replies need not be text to it."""
    if client.connection_pool.connection_kwargs.get("decode_responses"):
        raise ValueError("the Redis client must have decode_responses=False")
