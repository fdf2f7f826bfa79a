"""Whether an object is as it was applied, without writing it again to find out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Applied:
    """What was applied, and what the object looked like right after: while both hold there is nothing to write."""

    wanted: str
    found: str


def identity(manifest: Mapping[str, Any]) -> tuple[str, str, str]:
    return manifest["kind"], manifest["metadata"]["namespace"], manifest["metadata"]["name"]


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def fingerprint(body: Mapping[str, Any]) -> str:
    """Of everything that somebody may change by hand; not of what changes by itself."""
    metadata = {name: body["metadata"].get(name) for name in ("uid", "labels", "annotations", "ownerReferences")}
    rest = {name: value for name, value in body.items() if name not in ("metadata", "status", "kind", "apiVersion")}
    return digest({"metadata": metadata, **rest})


def is_owned_by(body: Mapping[str, Any], uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in body["metadata"].get("ownerReferences") or ())
