"""Who may open connections to the pods and to the routers."""

from __future__ import annotations

from typing import Any

from stream2llm_operator.desired.naming import (
    POD_PORT,
    ROUTER_PORT,
    metadata,
    pods_selector,
    router_name,
    router_selector,
)
from stream2llm_operator.pool import OperatorSettings, Pool


def pods_policy(pool: Pool, settings: OperatorSettings) -> dict[str, Any]:
    """vLLM's port asks nobody who they are, so only routers and, where it is configured, monitoring reach it."""
    sources: list[dict[str, Any]] = [{"podSelector": {"matchLabels": router_selector(pool)}}]
    if settings.monitoring_namespace_labels:
        sources.append({"namespaceSelector": {"matchLabels": dict(settings.monitoring_namespace_labels)}})
    return _policy(pool, pool.name, "pod", pods_selector(pool), {"from": sources, "ports": [_port(POD_PORT)]})


def router_policy(pool: Pool) -> dict[str, Any]:
    return _policy(pool, router_name(pool), "router", router_selector(pool), {"ports": [_port(ROUTER_PORT)]})


def _policy(pool: Pool, name: str, component: str, selector: dict[str, str], ingress: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(pool, name, component),
        "spec": {"podSelector": {"matchLabels": selector}, "policyTypes": ["Ingress"], "ingress": [ingress]},
    }


def _port(number: int) -> dict[str, Any]:
    return {"port": number, "protocol": "TCP"}
