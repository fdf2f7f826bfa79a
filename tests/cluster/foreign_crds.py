"""CustomResourceDefinitions of other projects, from their Go modules; versions and places in programs.toml."""

from __future__ import annotations

import os
from pathlib import Path

import programs


def crd(plural: str) -> Path:
    """The file that defines this kind, fetched once into the cache. Raises programs.NotAvailable."""
    pin = programs.PINS["crds"][plural]
    path = programs.cache() / f"{plural}-{pin['version']}.yaml"
    if path.exists():
        return path
    found = programs.module_folder(pin["module"], pin["version"]) / pin["file"]
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(found.read_bytes())
    partial.rename(path)
    return path
