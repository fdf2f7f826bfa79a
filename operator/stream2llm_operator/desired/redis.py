"""How a container is told where Redis is. Passwords are files from Secrets: never arguments, never variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stream2llm_operator.pool import Pool

PATH = "/etc/stream2llm/redis"


@dataclass(frozen=True, slots=True)
class RedisAccess:
    """What a container and its pod need."""

    arguments: list[str]
    env: list[dict[str, Any]]
    mounts: list[dict[str, Any]]
    volumes: list[dict[str, Any]]


def redis_access(pool: Pool) -> RedisAccess:
    redis = pool.spec.streams.redis
    access = RedisAccess(arguments=["--pool", pool.redis_pool], env=[], mounts=[], volumes=[])
    access.env.append({"name": "STREAM2LLM_REDIS", "value": redis.url})
    if redis.auth is not None:
        secret = redis.auth.secret_ref
        items = [{"key": secret.key, "path": "password"}]
        _mount(access, "redis-password", {"secret": {"secretName": secret.name, "items": items}}, "auth")
        access.arguments.extend(["--redis-password-file", f"{PATH}/auth/password"])
    if redis.tls is not None and redis.tls.ca_ref is not None:
        authority = redis.tls.ca_ref
        items = [{"key": authority.key, "path": "ca.crt"}]
        _mount(access, "redis-ca", {"configMap": {"name": authority.name, "items": items}}, "ca")
        access.env.append({"name": "STREAM2LLM_REDIS_CA_FILE", "value": f"{PATH}/ca/ca.crt"})
    if redis.tls is not None and redis.tls.client_cert_secret_ref is not None:
        name = redis.tls.client_cert_secret_ref.name
        _mount(access, "redis-certificate", {"secret": {"secretName": name}}, "tls")
        access.env.append({"name": "STREAM2LLM_REDIS_CERT_FILE", "value": f"{PATH}/tls/tls.crt"})
        access.env.append({"name": "STREAM2LLM_REDIS_KEY_FILE", "value": f"{PATH}/tls/tls.key"})
    return access


def _mount(access: RedisAccess, name: str, source: dict[str, Any], folder: str) -> None:
    access.volumes.append({"name": name, **source})
    access.mounts.append({"name": name, "mountPath": f"{PATH}/{folder}", "readOnly": True})
