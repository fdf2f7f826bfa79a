"""The peer: what kopf's documentation shows, an operator that makes one Deployment of each of its resources.

usage: python -m stream2llm_bench.operating.bare      on the cluster of $KUBECONFIG
"""

from __future__ import annotations

from typing import Any

import kopf
from kubernetes import client, config

GROUP, VERSION, PLURAL, KIND = "bench.stream2llm.io", "v1", "bares", "Bare"
IMAGE = "registry.example/bare:1"


def definition() -> dict[str, Any]:
    """The CustomResourceDefinition of its resources, which say nothing."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": PLURAL, "singular": KIND.lower(), "kind": KIND},
            "versions": [
                {"name": VERSION, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }


def deployment(name: str) -> dict[str, Any]:
    """The only child."""
    labels = {"bench.stream2llm.io/bare": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "bare", "image": IMAGE}]},
            },
        },
    }


def main() -> None:
    config.load_config()  # type: ignore[no-untyped-call]
    api = client.AppsV1Api()

    @kopf.on.create(GROUP, VERSION, PLURAL)
    def create(name: str | None, namespace: str | None, **_: Any) -> None:
        made: Any = deployment(str(name))
        kopf.adopt(made)
        api.create_namespaced_deployment(str(namespace), made)

    kopf.run(clusterwide=True, standalone=True)


if __name__ == "__main__":
    main()
