"""How a Prometheus that is run by the Prometheus operator finds the pool's metrics."""

from __future__ import annotations

from typing import Any

from stream2llm_operator.desired.naming import MANAGER, POOL_LABEL, metadata
from stream2llm_operator.pool import OperatorSettings, Pool

POD_MONITOR = "PodMonitor"


def pod_monitor(pool: Pool, settings: OperatorSettings) -> dict[str, Any] | None:
    """One for pods and routers, None where it is not wanted."""
    wanted = settings.pod_monitor
    if wanted is None:
        return None
    made = metadata(pool, pool.name, "monitoring")
    made["labels"] = {**wanted.labels, **made["labels"]}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": POD_MONITOR,
        "metadata": made,
        "spec": {
            "selector": {
                "matchLabels": {POOL_LABEL: pool.name, "app.kubernetes.io/managed-by": MANAGER},
                "matchExpressions": [
                    {"key": "app.kubernetes.io/component", "operator": "In", "values": ["pod", "router"]}
                ],
            },
            "podMetricsEndpoints": [
                {
                    "port": "http",
                    "path": "/metrics",
                    "interval": wanted.interval,
                    # The series carry the pool's own namespace, pool and pod, which Prometheus would rename.
                    "honorLabels": True,
                }
            ],
        },
    }
