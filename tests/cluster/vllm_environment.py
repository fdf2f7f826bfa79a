"""vLLM for CPU and all it needs as one folder of Python packages, for a volume: what the image of the pod has too."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from programs import ROOT, NotAvailable, cache, say

LOCK = ROOT / "requirements" / "pod-cpu.lock"


def folder() -> Path:
    """The packages' folder, in the cache under the lock file's digest. Raises NotAvailable.

    Made of links to what the installer has in its cache, so it takes seconds and little space where setup has run.
    """
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]
    home = cache() / f"vllm-environment-{digest}"
    if home.is_dir():
        return home
    say("making a folder of vLLM's packages for pods (6 GB, of links where that can be)")
    home.parent.mkdir(parents=True, exist_ok=True)
    fresh = home.with_name(f".{home.name}.fresh")
    shutil.rmtree(fresh, ignore_errors=True)
    command = [str(ROOT / "tools/uv.sh"), "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    # As pip does in an image. A read-only volume would have every pod compile everything at every start.
    command += ["--compile-bytecode"]
    command += ["--python", sys.executable, "--target", str(fresh), "--requirement", str(LOCK)]
    command += ["--build-constraints", str(ROOT / "requirements" / "build.lock")]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if result.returncode:
        raise NotAvailable(f"{' '.join(command)}: {result.stderr.strip()[-2000:]}")
    fresh.rename(home)
    return home
