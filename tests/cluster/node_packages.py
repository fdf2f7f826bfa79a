"""The node's programs that come with the distribution: installed where this machine lets us, else named."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from programs import PINS, ROOT, NotAvailable, say


def missing() -> list[str]:
    """Packages of programs that are not there."""
    return sorted({package for program, package in PINS["packages"].items() if not _is_there(program)})


def ensure() -> None:
    """Raises NotAvailable with the command to run where it cannot install them."""
    if not (wanted := missing()):
        return
    say(f"installing {', '.join(wanted)}")
    result = subprocess.run([str(ROOT / "tools/apt.sh"), *wanted], capture_output=True, text=True)
    if result.returncode:
        raise NotAvailable(result.stderr.strip())


def _is_there(program: str) -> bool:
    if program.startswith("/"):
        return Path(program).exists()
    return shutil.which(program, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin") is not None
