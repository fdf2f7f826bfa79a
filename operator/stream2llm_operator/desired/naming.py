"""Names and labels of everything that belongs to a resource."""

from __future__ import annotations

from typing import Any

from stream2llm_operator.api.crd import API_VERSION, GROUP, KIND
from stream2llm_operator.pool import Pool

MANAGER = "stream2llm-operator"
POOL_LABEL = f"{GROUP}/pool"
PODS_LABEL = f"{GROUP}/pods"
"""Only serving pods carry it, so that a Service or an InferencePool can select them by it alone."""
ROUTER_LABEL = f"{GROUP}/router"
PROFILE_KEY_LABEL = f"{GROUP}/profile-key"
POD_PORT, ROUTER_PORT = 8000, 8080
USER_ID = 10001
"""The user in our images."""


def router_name(pool: Pool) -> str:
    return f"{pool.name}-router"


def tenants_name(pool: Pool) -> str:
    return f"{pool.name}-tenants"


def profile_job_name(pool: Pool, key_hash: str) -> str:
    return f"{pool.name}-profile-{key_hash}"


def profile_config_map_name(key_hash: str) -> str:
    return f"stream2llm-profile-{key_hash}"


def labels(pool: Pool, component: str) -> dict[str, str]:
    """Kubernetes' recommended labels, and the pool's."""
    return {
        "app.kubernetes.io/name": "stream2llm",
        "app.kubernetes.io/instance": pool.name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": MANAGER,
        POOL_LABEL: pool.name,
    }


def pods_selector(pool: Pool) -> dict[str, str]:
    return {PODS_LABEL: pool.name}


def router_selector(pool: Pool) -> dict[str, str]:
    return {ROUTER_LABEL: pool.name}


def owner(pool: Pool, *, controller: bool) -> dict[str, Any]:
    """An owner reference: the garbage collector removes the child after its last owner."""
    reference = {"apiVersion": API_VERSION, "kind": KIND, "name": pool.name, "uid": pool.uid}
    return {**reference, "controller": True} if controller else reference


def metadata(pool: Pool, name: str, component: str, **more: Any) -> dict[str, Any]:
    """Metadata of a child that belongs to this resource alone."""
    return {
        "name": name,
        "namespace": pool.namespace,
        "labels": labels(pool, component),
        "ownerReferences": [owner(pool, controller=True)],
        **more,
    }
