"""Folders of this machine as read-only volumes of the node. Restricted Pod Security refuses hostPath, and these not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from node import NODE

SIZE = "10Gi"
"""What claim and volume say of themselves; nothing checks it."""


def read_only(namespace: str, name: str, folder: Path) -> list[dict[str, Any]]:
    """A volume and the claim `name` on it. The volume outlives the namespace: delete it by name, `NAMESPACE-NAME`."""
    volume = f"{namespace}-{name}"
    modes = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                **modes,
                "capacity": {"storage": SIZE},
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": namespace, "name": name},
                "local": {"path": str(folder)},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {**modes, "volumeName": volume, "resources": {"requests": {"storage": SIZE}}},
        },
    ]
