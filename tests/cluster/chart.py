"""Our chart in the test cluster, by a real helm."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import programs

CHART = programs.ROOT / "helm" / "stream2llm"


def helm(kubeconfig: Path, *arguments: str, values: dict[str, Any] | None = None) -> str:
    """What helm prints. values: as a values file. Raises RuntimeError with what it said."""
    command = [str(programs.ensure("helm")["helm"]), *arguments]
    if values is not None:
        command += ["--values", "-"]
    result = subprocess.run(
        command,
        input=json.dumps(values) if values is not None else None,
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        capture_output=True,
        text=True,
    )
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}: {result.stderr.strip()}")
    return result.stdout
