"""The routers: their Deployment, Service, ServiceAccount and PodDisruptionBudget."""

from __future__ import annotations

import json
from typing import Any

from stream2llm_operator.api.fields import quantity_bytes
from stream2llm_operator.desired.engine import container_security, pod_security
from stream2llm_operator.desired.merging import merged
from stream2llm_operator.desired.naming import ROUTER_PORT, labels, metadata, router_name, router_selector, tenants_name
from stream2llm_operator.desired.redis import redis_access
from stream2llm_operator.pool import OperatorSettings, Pool

TENANTS_PATH, TENANTS_KEY = "/etc/stream2llm/tenants", "tenants.json"
TOKENS_PATH = "/etc/stream2llm/tokens"
RESOURCES = {"requests": {"cpu": "250m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}


def deployment(pool: Pool, settings: OperatorSettings) -> dict[str, Any]:
    """Routers share the tenants by leases, so one is replaced while the others work."""
    redis = redis_access(pool)
    arguments = ["route", "--http", f"0.0.0.0:{ROUTER_PORT}", *redis.arguments]
    arguments += ["--max-chunk-bytes", str(quantity_bytes(pool.spec.streams.max_chunk))]
    scaling = pool.spec.autoscaling
    if scaling is not None and scaling.min_replicas == 0:
        # The open that wakes the pool must outlast the start of its pod.
        arguments += ["--start-wait-seconds", str(pool.spec.startup.timeout_seconds)]
    mounts: list[dict[str, Any]] = [{"name": "tmp", "mountPath": "/tmp"}, *redis.mounts]
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}, *redis.volumes]
    if pool.spec.router.auth is not None:
        secret = pool.spec.router.auth.tokens_secret_ref
        items = [{"key": secret.key, "path": "tokens"}]
        volumes.append({"name": "tokens", "secret": {"secretName": secret.name, "items": items}})
        mounts.append({"name": "tokens", "mountPath": TOKENS_PATH, "readOnly": True})
        arguments += ["--http-tokens-file", f"{TOKENS_PATH}/tokens"]
    # A change reaches the mounted file within a minute or so, and the routers read it without a restart.
    volumes.append({"name": "tenants", "configMap": {"name": tenants_name(pool)}})
    mounts.append({"name": "tenants", "mountPath": TENANTS_PATH, "readOnly": True})
    arguments += ["--tenants-file", f"{TENANTS_PATH}/{TENANTS_KEY}"]
    container = {
        "name": "router",
        "image": settings.image_router,
        "imagePullPolicy": settings.image_pull_policy,
        "args": arguments,
        "env": redis.env,
        "ports": [{"name": "http", "containerPort": ROUTER_PORT, "protocol": "TCP"}],
        "resources": merged(RESOURCES, dict(pool.spec.router.resources)),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
        # It is healthy while it reaches Redis. Restarting it would not bring Redis back, so liveness asks for less.
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": "http"},
            "periodSeconds": 5,
            "timeoutSeconds": 5,
            "failureThreshold": 2,
        },
        "livenessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 10, "failureThreshold": 6},
    }
    pod: dict[str, Any] = {
        "serviceAccountName": router_name(pool),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": 30,
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": router_selector(pool)},
            }
        ],
        "containers": [container],
        "volumes": volumes,
    }
    if settings.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    template = merged({"metadata": {"labels": {}}, "spec": pod}, dict(pool.spec.router.template))
    template["metadata"]["labels"] = {
        **(template["metadata"].get("labels") or {}),
        **labels(pool, "router"),
        **router_selector(pool),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(pool, router_name(pool), "router"),
        "spec": {
            "replicas": pool.spec.router.replicas,
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": router_selector(pool)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": template,
        },
    }


def tenants(pool: Pool) -> dict[str, Any]:
    """The tenants as the routers read them."""
    listed = [
        {
            "name": tenant.name,
            "weight": tenant.weight,
            **({"maxOpenStreams": tenant.max_open_streams} if tenant.max_open_streams is not None else {}),
        }
        for tenant in pool.spec.streams.tenants
    ]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(pool, tenants_name(pool), "router"),
        "data": {TENANTS_KEY: json.dumps(listed, indent=1) + "\n"},
    }


def service(pool: Pool) -> dict[str, Any]:
    wanted = pool.spec.router.service
    more = {"annotations": dict(wanted.annotations)} if wanted.annotations else {}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(pool, router_name(pool), "router", **more),
        "spec": {
            "type": wanted.type,
            "selector": router_selector(pool),
            "ports": [{"name": "http", "port": ROUTER_PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def service_account(pool: Pool) -> dict[str, Any]:
    """Without any rights, and without a token."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(pool, router_name(pool), "router"),
        "automountServiceAccountToken": False,
    }


def disruption_budget(pool: Pool) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(pool, router_name(pool), "router"),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": router_selector(pool)},
        },
    }
