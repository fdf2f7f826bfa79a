"""The CustomResourceDefinition, made from the types in `spec` and `status`."""

from __future__ import annotations

import copy
from typing import Any

from stream2llm_operator.api.fields import Part
from stream2llm_operator.api.spec import Spec
from stream2llm_operator.api.status import Status

GROUP, VERSION = "stream2llm.io", "v1alpha1"
KIND, PLURAL, SINGULAR, SHORT_NAME = "StreamingPrefill", "streamingprefills", "streamingprefill", "spf"
API_VERSION = f"{GROUP}/{VERSION}"
MAX_NAME_LENGTH = 45
"""Children add suffixes to the name, and so does the autoscaler that KEDA makes; all end up in labels of 63."""

COLUMNS: tuple[tuple[str, str, str, str], ...] = (
    ("Model", "string", ".spec.model.name", "What clients ask for"),
    ("GPU", "string", ".status.gpuProduct", "The GPUs that the pods run on"),
    ("Policy", "string", ".spec.scheduling.policy", "Who runs first"),
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', "Whether the pool serves"),
    ("Replicas", "integer", ".status.replicas", "Pods that there are"),
    ("Profile", "string", ".status.costProfile.source", "Where the cost profile comes from"),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', "Why it is ready or not"),
    ("Age", "date", ".metadata.creationTimestamp", "Since when it exists"),
)


def crd() -> dict[str, Any]:
    """The whole manifest. Its keys are in the order in which people read them."""
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "description": text} for name, kind, path, text in COLUMNS
        ],
        "schema": {"openAPIV3Schema": root_schema()},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{PLURAL}.{GROUP}",
            "labels": {"app.kubernetes.io/name": "stream2llm", "app.kubernetes.io/component": "crd"},
            # Uninstalling the chart must not delete all pools of the cluster.
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": SINGULAR,
                "shortNames": [SHORT_NAME],
                "categories": ["all", "stream2llm"],
            },
            "versions": [version],
        },
    }


def root_schema() -> dict[str, Any]:
    """The schema of the whole object."""
    return {
        "type": "object",
        "description": "A pool of vLLM pods that prefill prompts while their context is still arriving.",
        "required": ["spec"],
        "x-kubernetes-validations": [
            {
                "rule": f"size(self.metadata.name) <= {MAX_NAME_LENGTH}",
                "message": f"the name may have at most {MAX_NAME_LENGTH} characters",
            }
        ],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(Spec),
            "status": structural(Status),
        },
    }


def structural(part: type[Part]) -> dict[str, Any]:
    """The types as a structural schema: nothing referenced, nothing nullable, defaults that unfold by themselves."""
    document = part.model_json_schema(by_alias=True, mode="validation")
    return _structural(document, document.get("$defs", {}))


# Keywords that pydantic writes and a structural schema has no use for or forbids.
_LEFT_OUT = ("title", "$defs", "const")
# What people read first stands first.
_ORDER = ("description", "type", "x-kubernetes-int-or-string", "anyOf", "format", "enum", "default", "required")


def _structural(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    schema = _without_null(_without_reference(schema, definitions), definitions)
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            result[key] = {name: _structural(child, definitions) for name, child in value.items()}
        elif key == "items":
            result[key] = _structural(value, definitions)
        elif key == "additionalProperties":
            if isinstance(value, dict):
                result[key] = _structural(value, definitions)
        elif key == "x-map-key":
            result |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [value]}
        elif key not in _LEFT_OUT:
            result[key] = value
    if result.get("type") == "array" and "x-kubernetes-list-type" not in result:
        result["x-kubernetes-list-type"] = "atomic"
    if result.get("x-kubernetes-preserve-unknown-fields"):
        result.pop("default", None)
    if "default" in result:
        result["default"] = _shortest(result["default"], result)
        if result["default"] is None:
            del result["default"]
    last = [key for key in result if key not in (*_ORDER, "properties")]
    return {key: result[key] for key in (*_ORDER, *last, "properties") if key in result}


def _shortest(default: Any, schema: dict[str, Any]) -> Any:
    """A default without what the API server fills in by itself from the defaults further in.

    Where there are rules it stays whole: they are evaluated on the default as it stands.
    """
    if isinstance(default, list):
        return [_shortest(item, schema["items"]) for item in default]
    if not isinstance(default, dict):
        return default
    kept = {}
    for name, value in default.items():
        child = schema["properties"][name]
        short = None if value is None else _shortest(value, child)
        if short is None:
            continue
        if "x-kubernetes-validations" not in schema and "default" in child and short == child["default"]:
            continue
        if short == {} and child.get("x-kubernetes-preserve-unknown-fields"):
            continue
        kept[name] = short
    return kept


def _without_reference(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """A reference replaced by what it names. What stands beside it, such as the field's description, wins."""
    if "$ref" not in schema:
        return schema
    target = definitions[schema["$ref"].rpartition("/")[2]]
    return {**copy.deepcopy(target), **{key: value for key, value in schema.items() if key != "$ref"}}


def _without_null(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """`X or nothing` as X: a field that may be absent is one that is not required."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) != 1 or "anyOf" not in schema:
        return schema
    beside = {key: value for key, value in schema.items() if key != "anyOf"}
    return {**copy.deepcopy(_without_reference(choices[0], definitions)), **beside}
