"""Connections to Redis from a URL, the same way in every program."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from stream2llm import settings
from stream2llm.keys import DEFAULT_POOL, DEFAULT_TENANT

DEFAULT_URL = "redis://127.0.0.1:6379"
URL_VARIABLE, PASSWORD_VARIABLE = "STREAM2LLM_REDIS", "STREAM2LLM_REDIS_PASSWORD"


class BadRedisURL(ValueError):
    """A URL that cannot be used, with the reason."""


def add_redis_arguments(parser: argparse.ArgumentParser, *, tenant: bool = True) -> None:
    """Add --redis, --redis-password-file, --pool and, if asked for, --tenant."""
    parser.add_argument(
        "--redis",
        default=os.environ.get(URL_VARIABLE, DEFAULT_URL),
        metavar="URL",
        help=f"redis:// or rediss:// (environment {URL_VARIABLE}; default {DEFAULT_URL})",
    )
    parser.add_argument(
        "--redis-password-file",
        metavar="FILE",
        help=f"file with the password; or the environment variable {PASSWORD_VARIABLE}. Never in the URL",
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
    if parts.scheme in ("redis+sentinel", "redis+cluster"):
        raise BadRedisURL(f"{parts.scheme}:// is not supported yet; use redis:// or rediss://")
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise BadRedisURL(f"a Redis URL must begin with redis:// or rediss://, not {parts.scheme or 'nothing'!r}")
    if allow_password or url == os.environ.get(URL_VARIABLE):
        return url
    if parts.password or "password" in parse_qs(parts.query):
        raise BadRedisURL(
            f"a password in the Redis URL shows in process lists; use {PASSWORD_VARIABLE} or --redis-password-file"
        )
    return url


def read_password(password_file: str | None) -> str | None:
    """The password from the file, else from the environment, else None."""
    if password_file:
        return Path(password_file).read_text().rstrip("\n")
    return os.environ.get(PASSWORD_VARIABLE) or None


# Pinned, because the defaults differ between versions of the Redis client.
_OPTIONS: dict[str, Any] = {
    "protocol": 2,
    "decode_responses": False,
    "socket_timeout": settings.SOCKET_TIMEOUT_S,
    "socket_connect_timeout": 5.0,
    "health_check_interval": 30,
}


def connect(
    url: str, password_file: str | None = None, *, retries: int = 3, allow_password: bool = False
) -> redis.Redis:
    """A client for blocking use. Retries are pinned, since a retried write may be done twice; 0 for none.

    Raises BadRedisURL; connects with the first command only.
    """
    client: redis.Redis = redis.Redis.from_url(
        check_url(url, allow_password=allow_password),
        password=read_password(password_file),
        retry=Retry(ExponentialBackoff(cap=1.0, base=0.05), retries),
        **_OPTIONS,
    )
    return client


def connect_async(
    url: str, password_file: str | None = None, *, retries: int = 3, allow_password: bool = False
) -> redis.asyncio.Redis:
    """As `connect`, for asyncio."""
    client: redis.asyncio.Redis = redis.asyncio.Redis.from_url(
        check_url(url, allow_password=allow_password),
        password=read_password(password_file),
        retry=AsyncRetry(ExponentialBackoff(cap=1.0, base=0.05), retries),
        **_OPTIONS,
    )
    return client


def check_answers_bytes(client: redis.Redis | redis.asyncio.Redis) -> None:
    """Raises ValueError for a client that decodes: chunks and replies need not be text to it."""
    if client.connection_pool.connection_kwargs.get("decode_responses"):
        raise ValueError("the Redis client must have decode_responses=False")
