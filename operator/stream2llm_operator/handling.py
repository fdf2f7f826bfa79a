"""kopf's part: watches fill indices, events fill the work queue. Nothing here decides anything.

Only silent handlers are used: kopf then sets no finalizer and no annotation, and nothing is stuck when it is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import kopf

from stream2llm_operator.api.crd import GROUP, PLURAL, VERSION
from stream2llm_operator.desired.naming import MANAGER, POOL_LABEL
from stream2llm_operator.discovering import PRODUCT_LABEL
from stream2llm_operator.queueing import Key, WorkQueue

SELECTOR = f"app.kubernetes.io/managed-by={MANAGER}"
RESOURCES = (GROUP, VERSION, PLURAL)
CHILDREN: dict[tuple[str, str, str], str] = {
    ("apps", "v1", "deployments"): "Deployment",
    ("batch", "v1", "jobs"): "Job",
    ("", "v1", "configmaps"): "ConfigMap",
    ("", "v1", "services"): "Service",
    ("", "v1", "serviceaccounts"): "ServiceAccount",
    ("networking.k8s.io", "v1", "networkpolicies"): "NetworkPolicy",
    ("policy", "v1", "poddisruptionbudgets"): "PodDisruptionBudget",
}
PODS, NODES = ("", "v1", "pods"), ("", "v1", "nodes")


def make_settings() -> kopf.OperatorSettings:
    """What differs from kopf's defaults."""
    settings = kopf.OperatorSettings()
    # We write our own events; kopf's are log lines.
    settings.posting.enabled = False
    settings.peering.standalone = True
    # The kinds are known; looking for new ones needs the right to read all CRDs and namespaces.
    settings.scanning.disabled = True
    for resource in (*CHILDREN, PODS):
        settings.watching.label_selectors[resource] = SELECTOR
    return settings


def make_registry(queue: WorkQueue, *, reads_nodes: bool) -> kopf.OperatorRegistry:
    """The indices `resources`, `children`, `pods` and `nodes`, and the handlers that ask for passes."""
    registry = kopf.OperatorRegistry()

    def index_resource(body: kopf.Body, **_: Any) -> dict[Key, dict[str, Any]]:
        return {_key(body): _plain(body)}

    def resource_seen(body: kopf.Body, event: Mapping[str, Any], **_: Any) -> None:
        if event["type"] == "DELETED":
            queue.forget(_key(body))
        # A pass for one that is gone too: others may share its profile.
        queue.add(_key(body))

    kopf.index(*RESOURCES, id="resources", registry=registry)(index_resource)
    kopf.on.event(*RESOURCES, id="resource-seen", registry=registry)(resource_seen)

    def child_seen(body: kopf.Body, **_: Any) -> None:
        for owner in _owners(body):
            queue.add(owner)

    for resource, kind in CHILDREN.items():

        def index_child(body: kopf.Body, kind: str = kind, **_: Any) -> dict[tuple[str, str, str], dict[str, Any]]:
            return {(kind, *_key(body)): _plain(body)}

        kopf.index(*resource, id="children", registry=registry)(index_child)
        kopf.on.event(*resource, id="child-seen", registry=registry)(child_seen)

    def index_pod(body: kopf.Body, **_: Any) -> dict[tuple[str, str, str], dict[str, Any]]:
        labels = body["metadata"].get("labels") or {}
        component = labels.get("app.kubernetes.io/component", "")
        return {(body["metadata"]["namespace"], labels.get(POOL_LABEL, ""), component): _plain(body)}

    def pod_seen(body: kopf.Body, **_: Any) -> None:
        metadata = body["metadata"]
        if (name := (metadata.get("labels") or {}).get(POOL_LABEL)) is not None:
            queue.add((metadata["namespace"], name))

    kopf.index(*PODS, id="pods", registry=registry)(index_pod)
    kopf.on.event(*PODS, id="pod-seen", registry=registry)(pod_seen)

    if reads_nodes:
        seen: dict[str, Any] = {}

        def node_seen(body: kopf.Body, event: Mapping[str, Any], **kwargs: Any) -> None:
            """A product that comes or goes concerns everybody, and every other change of a node nobody."""
            name, offer = body["metadata"]["name"], None
            if event["type"] != "DELETED":
                product = (body["metadata"].get("labels") or {}).get(PRODUCT_LABEL)
                offer = (product, devices((body.get("status") or {}).get("allocatable") or {}))
            if seen.get(name) != offer:
                seen[name] = offer
                for key in list(kwargs["resources"]):
                    queue.add(key)

        kopf.on.event(*NODES, id="node-seen", registry=registry)(node_seen)

        def index_node(body: kopf.Body, **_: Any) -> dict[str, dict[str, Any]]:
            # Nodes are large and change often; this is all that is read of them.
            return {
                str(body["metadata"]["name"]): {
                    "metadata": {
                        "name": body["metadata"]["name"],
                        "labels": dict(body["metadata"].get("labels") or {}),
                    },
                    "status": {"allocatable": dict((body.get("status") or {}).get("allocatable") or {})},
                }
            }

        kopf.index(*NODES, id="nodes", registry=registry)(index_node)
    return registry


def devices(allocatable: Mapping[str, Any]) -> frozenset[str]:
    """Names of the extended resources that a node offers: a label may be there long before its devices are."""
    return frozenset(name for name, count in allocatable.items() if "/" in name and str(count) != "0")


def _key(body: Mapping[str, Any]) -> Key:
    return body["metadata"]["namespace"], body["metadata"]["name"]


def _owners(body: Mapping[str, Any]) -> list[Key]:
    references = body["metadata"].get("ownerReferences") or ()
    return [
        (body["metadata"]["namespace"], owner["name"])
        for owner in references
        if owner.get("kind") == "StreamingPrefill"
    ]


def _plain(body: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data of its own; without what servers keep about who wrote which field, which is half of an object."""
    return {
        name: {key: _copy(child) for key, child in value.items() if key != "managedFields"}
        if name == "metadata"
        else _copy(value)
        for name, value in body.items()
    }


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_copy(child) for child in value]
    return value


logging.getLogger("kopf").setLevel(logging.WARNING)
