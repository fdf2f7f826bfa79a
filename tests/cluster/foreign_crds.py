"""CustomResourceDefinitions of other projects, from their Go modules; versions and places in programs.toml."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

import programs


def crd(plural: str) -> Path:
    """The file that defines this kind, fetched once into the cache. Raises programs.NotAvailable."""
    pin = programs.PINS["crds"][plural]
    path = programs.cache() / f"{plural}-{pin['version']}.yaml"
    if path.exists():
        return path
    command = [str(programs.go_program()), "mod", "download", "-json", f"{pin['module']}@{pin['version']}"]
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod", "GOWORK": "off"}
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if result.returncode:
        raise programs.NotAvailable(f"{' '.join(command)}: {(result.stdout + result.stderr).strip()[-2000:]}")
    found = Path(json.loads(result.stdout)["Dir"]) / pin["file"]
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(found.read_bytes())
    partial.rename(path)
    return path
