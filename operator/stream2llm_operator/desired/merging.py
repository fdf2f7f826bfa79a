"""Lays a user's pod template over the operator's, as `kubectl apply` would: by name where Kubernetes merges by name."""

from __future__ import annotations

import copy
from typing import Any

# Lists of named things and the field that names them, as in Kubernetes' own merge keys.
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "claims": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
APPENDED = ("tolerations", "envFrom", "readinessGates")


def merged(base: Any, over: Any, key: str = "") -> Any:
    """A new value: maps are merged, lists of named things are merged by name, everything else is replaced.

    null takes a field away. What has another type than the operator's is taken as the user gave it: the dry run says
    what is wrong with it.
    """
    if isinstance(base, dict) and isinstance(over, dict):
        result = {name: copy.deepcopy(value) for name, value in base.items() if name not in over}
        for name, value in over.items():
            if value is not None:
                result[name] = merged(base.get(name), value, name)
        return result
    if isinstance(base, list) and isinstance(over, list):
        if key in APPENDED:
            return copy.deepcopy(base) + [copy.deepcopy(item) for item in over if item not in base]
        if key in MERGE_KEYS and all(isinstance(item, dict) for item in (*base, *over)):
            return _merged_by_name(base, over, MERGE_KEYS[key])
    return copy.deepcopy(over)


def _merged_by_name(base: list[Any], over: list[Any], name: str) -> list[Any]:
    replacing = {item.get(name): item for item in over}
    result = [
        merged(item, replacing.pop(item[name])) if item.get(name) in replacing else copy.deepcopy(item) for item in base
    ]
    return result + [copy.deepcopy(item) for item in over if item.get(name) in replacing]
