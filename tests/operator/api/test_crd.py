"""The CRD as a document: it agrees with the types, is bounded everywhere, and is small enough to be applied."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from stream2llm_operator.api.crd import crd, root_schema

ROOT = Path(__file__).resolve().parent.parent.parent.parent
CRD_FILE = ROOT / "crds" / "stream2llm.io_streamingprefills.yaml"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "tools" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def schemas(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from schemas(child, f"{path}.{name}")
    if "items" in schema:
        yield from schemas(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from schemas(schema["additionalProperties"], f"{path}{{}}")


def fields() -> list[tuple[str, dict[str, Any]]]:
    properties = root_schema()["properties"]
    return [*schemas(properties["spec"], "spec"), *schemas(properties["status"], "status")]


def test_generated_files_are_what_the_code_makes(generate: ModuleType) -> None:
    assert generate.outdated() == []


def test_file_is_the_crd_and_stays_below_what_client_side_apply_takes() -> None:
    text = CRD_FILE.read_text()
    assert yaml.safe_load(text) == crd()
    assert len(text.encode()) < 128 * 1024  # of 256 KiB


@pytest.mark.parametrize(("path", "schema"), fields(), ids=[path for path, _ in fields()])
def test_every_field_is_typed_described_and_bounded(path: str, schema: dict[str, Any]) -> None:
    assert schema.get("x-kubernetes-int-or-string") or schema["type"] in ("object", "array", "string", "integer")
    if not path.endswith(("[]", "{}")):
        assert schema["description"].endswith(".")
    if schema.get("type") == "string" and "enum" not in schema and schema.get("format") != "date-time":
        assert "maxLength" in schema
    if schema.get("type") == "integer":
        assert "minimum" in schema
    if schema.get("type") == "array":
        assert "maxItems" in schema
        assert schema["x-kubernetes-list-type"] in ("map", "atomic")
    if "additionalProperties" in schema:
        assert "maxProperties" in schema


@pytest.mark.parametrize(
    ("path", "key"),
    [("spec.streams.tenants", "name"), ("status.conditions", "type"), ("status.addresses", "name")],
)
def test_lists_of_named_things_are_maps(path: str, key: str) -> None:
    schema = dict(fields())[path]
    assert (schema["x-kubernetes-list-type"], schema["x-kubernetes-list-map-keys"]) == ("map", [key])


def test_scale_and_status_are_subresources() -> None:
    version = crd()["spec"]["versions"][0]
    assert version["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    assert [column["name"] for column in version["additionalPrinterColumns"]] == [
        *("Model", "GPU", "Policy", "Ready", "Replicas", "Profile", "Reason", "Age")
    ]
