"""What must be there before a pod starts, each with a message that says what to do."""

from __future__ import annotations

import ctypes
import socket
from typing import Any

import redis
from redis.exceptions import RedisError


class CannotStart(Exception):
    """The pod cannot start; the message says why and what helps."""


def need_libnuma() -> None:
    """vLLM's CPU backend starts without libnuma and dies much later, in an operator that does not exist."""
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        raise CannotStart("libnuma.so.1 is missing, which vLLM on CPU needs; install it (Debian: libnuma1)") from None


def need_free_port(host: str | None, port: int) -> None:
    """Loading a model takes a while; a taken port should be known before."""
    family = socket.AF_INET6 if host and ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host or "", port))
        except OSError as error:
            raise CannotStart(
                f"cannot listen on {host or '*'}:{port}: {error.strerror}; choose another --port"
            ) from None


def need_redis(client: redis.Redis, url: str) -> None:
    """Redis answers, and will not throw streams away when its memory is full."""
    try:
        client.ping()
        found: Any = client.config_get("maxmemory-policy")
    except redis.exceptions.NoPermissionError:
        # A user who may not read the configuration cannot check it either.
        return
    except (RedisError, OSError) as error:
        raise CannotStart(f"Redis at {url} cannot be reached: {error}") from None
    policy = found.get("maxmemory-policy", found.get(b"maxmemory-policy", b"noeviction"))
    policy = policy.decode() if isinstance(policy, bytes) else policy
    if policy != "noeviction":
        raise CannotStart(f"Redis at {url} has maxmemory-policy {policy} and may drop streams; set it to noeviction")
