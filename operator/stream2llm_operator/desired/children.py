"""All children of one resource, in the order in which they are applied."""

from __future__ import annotations

from typing import Any

from stream2llm_operator.desired import network, routing, serving
from stream2llm_operator.desired.serving import MountedProfile
from stream2llm_operator.pool import OperatorSettings, Pool


def children(
    pool: Pool,
    settings: OperatorSettings,
    *,
    gpu_product: str | None,
    profile: MountedProfile | None,
    start_pods: bool,
) -> list[dict[str, Any]]:
    """Manifests of everything that belongs to this resource alone. start_pods: False while they must wait."""
    made = [
        serving.service_account(pool),
        routing.service_account(pool),
        network.pods_policy(pool, settings),
        network.router_policy(pool),
        serving.service(pool),
        routing.service(pool),
        serving.disruption_budget(pool),
        routing.disruption_budget(pool),
        routing.tenants(pool),
        routing.deployment(pool, settings),
    ]
    if start_pods:
        made.append(serving.deployment(pool, settings, gpu_product, profile))
    return made
