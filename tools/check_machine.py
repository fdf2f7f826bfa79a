"""Says what this machine lacks, before anything is downloaded.

usage: check_machine.py [FOLDER GIB]...

Errors (exit status 1) are what nothing works without: the platform, libnuma, venv, GIB of free space under each FOLDER.
Notes are what some tests or speed depend on. Needs nothing but the standard library.
"""

import ctypes
import importlib.util
import os
import platform
import shutil
import sys
from pathlib import Path

GIB = 2**30
OLDEST_GLIBC = (2, 28)
MEMORY_WANTED_GIB = 6


def errors(folders: list[tuple[Path, float]]) -> list[str]:
    """Everything that makes an installation impossible, each with its remedy."""
    found = []
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        found.append(
            f"Linux on x86_64 is needed for vLLM's CPU build, and this is {sys.platform} on {platform.machine()}. "
            "On another system use a container or a virtual machine."
        )
        return found
    library, version = platform.libc_ver()
    if library != "glibc" or tuple(int(part) for part in version.split(".")[:2]) < OLDEST_GLIBC:
        found.append(
            f"glibc {'.'.join(map(str, OLDEST_GLIBC))} or newer is needed (PyTorch's wheels are built for it); this "
            f"system has {library or 'another C library'} {version}."
        )
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        found.append(f"{sys.executable} cannot make virtual environments. Run: apt-get install python3-venv")
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        found.append(
            "libnuma is missing, and vLLM's CPU build needs it. Run: apt-get install libnuma1 "
            "(Fedora, RHEL: dnf install numactl-libs)"
        )
    for folder, gib in folders:
        existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
        free_gib = shutil.disk_usage(existing).free / GIB
        if free_gib < gib:
            found.append(
                f"{gib:g} GiB of free disk space are needed under {folder}, and there are {free_gib:.1f}. "
                "Free some, or point XDG_CACHE_HOME at a larger disk."
            )
        if not os.access(existing, os.W_OK):
            found.append(f"{existing} cannot be written to.")
    return found


def notes() -> list[str]:
    """Everything that goes on without, and what will be different."""
    found = []
    for program, package in (("redis-server", "redis-server"), ("redis-cli", "redis-tools")):
        if shutil.which(program) is None:
            found.append(f"{program} is missing (apt-get install {package}): tests that run on it will be skipped.")
    if shutil.which("node") is None:
        found.append("node is missing (apt-get install nodejs): the test of the Node.js example will be skipped.")
    if shutil.which("g++") is None:
        found.append(
            "g++ is missing (apt-get install g++): without it `stream2llm serve` needs --enforce-eager on a CPU."
        )
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    if memory_gib < MEMORY_WANTED_GIB:
        found.append(f"{memory_gib:.1f} GiB of memory: the demo and the engine tests want {MEMORY_WANTED_GIB}.")
    return found


def main() -> int:
    arguments = sys.argv[1:]
    folders = [(Path(arguments[i]).absolute(), float(arguments[i + 1])) for i in range(0, len(arguments), 2)]
    for note in notes():
        print(f"setup: note: {note}", file=sys.stderr)
    problems = errors(folders)
    for problem in problems:
        print(f"setup: error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
