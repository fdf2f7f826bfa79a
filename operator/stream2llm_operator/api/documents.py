"""The files that are generated from the types: the CRD and the reference page. `tools/generate.py` writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from stream2llm_operator.api.crd import KIND, crd, root_schema

_HEADER = "# Generated from operator/stream2llm_operator/api by `make generate`. Do not edit.\n"


class _Dumper(yaml.SafeDumper):
    """Without anchors, and with lists indented, as people write YAML."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def crd_yaml() -> str:
    """`crds/stream2llm.io_streamingprefills.yaml`."""
    return _HEADER + yaml.dump(crd(), Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


def reference_page() -> str:
    """`docs/reference/streamingprefill.md`: every field with its type, default, bounds and meaning."""
    properties = root_schema()["properties"]
    lines = [
        f"# {KIND}",
        "",
        "<!-- Generated from operator/stream2llm_operator/api by `make generate`. Do not edit. -->",
        "",
        "`kubectl explain streamingprefill.spec` says the same in a cluster. Fields in **bold** are required where",
        "their parent is given. A template is a part of a pod template, merged over what the operator makes.",
    ]
    for part in ("spec", "status"):
        lines += ["", f"## {part}", "", "| field | type | default | bounds | meaning |", "|---|---|---|---|---|"]
        lines += [_row(*field) for field in _fields(properties[part], "")]
        lines += ["", f"Rules of {part}:", ""] if part == "spec" else []
        if part == "spec":
            lines += [f"- `{path or part}`: {message}" for path, message in _messages(properties[part], "")]
    return "\n".join(lines) + "\n"


def _fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any], bool]]:
    for name, child in schema.get("properties", {}).items():
        at = f"{path}.{name}" if path else name
        yield at, child, name in schema.get("required", ())
        yield from _fields(child, at)
        yield from _fields(child.get("items", {}), f"{at}[]")


def _messages(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield path, rule["message"]
    for name, child in schema.get("properties", {}).items():
        yield from _messages(child, f"{path}.{name}" if path else name)


def _row(path: str, schema: dict[str, Any], required: bool) -> str:
    name = f"**`{path}`**" if required else f"`{path}`"
    default = schema.get("default")
    shown = "" if default is None or default in ({}, [], "") else f"`{_flow(default)}`"
    return f"| {name} | {_type(schema)} | {shown} | {_bounds(schema)} | {schema.get('description', '')} |"


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000)
    return text.removesuffix("...\n").strip()


def _type(schema: dict[str, Any]) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return "template"
    if schema["type"] == "array":
        key = schema.get("x-kubernetes-list-map-keys")
        return f"map by {key[0]}" if key else f"list of {_type(schema['items'])}s"
    if "enum" in schema:
        return " \\| ".join(f"`{choice}`" for choice in schema["enum"])
    return str(schema.get("format", schema["type"]))


def _bounds(schema: dict[str, Any]) -> str:
    parts = []
    for least, most, unit in (
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " items"),
        ("minProperties", "maxProperties", " entries"),
    ):
        low, high = schema.get(least), schema.get(most)
        if low is not None and high is not None:
            parts.append(f"{low:,} to {high:,}{unit}")
        elif high is not None:
            parts.append(f"at most {high:,}{unit}")
        elif low is not None:
            parts.append(f"at least {low:,}{unit}")
    return ", ".join(parts)
