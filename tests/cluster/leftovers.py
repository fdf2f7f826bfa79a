"""Takes away what a cluster has left on this machine: processes, mounts, control groups.

A cluster that ends in order leaves nothing. One that was killed leaves running pods and their mounts, and the next one
begins by cleaning up. Only what is in a cluster's own control group or talks to its own containerd is ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
PATIENCE_S = 20.0
LOG_LINKS = Path("/var/log/containers")
"""A kubelet puts links to its containers' logs here, whatever it is told."""


def control_groups(name: str) -> list[Path]:
    """The top folders of a control group: one per controller with cgroup v1, one with v2. Only those that exist."""
    candidates = [CGROUPS / name, *(each / name for each in CGROUPS.iterdir() if each.is_dir())]
    return [each for each in candidates if (each / "cgroup.procs").exists()]


def make_control_groups(name: str) -> None:
    """One in which a kubelet keeps its pods, away from everything else on the machine. Needs root."""
    if (CGROUPS / "cgroup.controllers").exists():
        available = (CGROUPS / "cgroup.controllers").read_text().split()
        with contextlib.suppress(OSError):
            (CGROUPS / "cgroup.subtree_control").write_text(" ".join(f"+{each}" for each in available))
        (CGROUPS / name).mkdir(exist_ok=True)
        return
    for controller in CGROUPS.iterdir():
        if not (controller / "cgroup.procs").exists() or controller.is_symlink():
            continue
        (controller / name).mkdir(exist_ok=True)
        # A new cpuset is empty, and nothing can be put into it.
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (controller / file).exists():
                (controller / name / file).write_text((controller / file).read_text())


def sweep(cgroup: str, socket: str, folders: tuple[Path, ...]) -> None:
    """Ends every process of these control groups and every shim of the containerd at `socket`, then unmounts what lies
    under the folders and removes the control groups, and the links to logs in the folders."""
    deadline = time.monotonic() + PATIENCE_S
    while (left := set(_processes(cgroup)) | set(_shims(socket))) and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)
    for mount in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        point = mount.split()[1].replace("\\040", " ")
        if any(point.startswith(f"{folder}/") for folder in folders):
            subprocess.run(["umount", "--lazy", point], stderr=subprocess.DEVNULL)
    for top in control_groups(cgroup):
        for name, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                Path(name).rmdir()
    for link in LOG_LINKS.iterdir() if LOG_LINKS.is_dir() else ():
        if link.is_symlink() and any(str(link.readlink()).startswith(f"{folder}/") for folder in folders):
            link.unlink()
    with contextlib.suppress(OSError):
        LOG_LINKS.rmdir()


def _processes(cgroup: str) -> Iterator[int]:
    for top in control_groups(cgroup):
        for folder, _, _ in os.walk(top):
            with contextlib.suppress(OSError):
                yield from (int(line) for line in (Path(folder) / "cgroup.procs").read_text().split())


def _shims(socket: str) -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if words[0].endswith(b"/containerd-shim-runc-v2") and socket.encode() in words:
                    yield int(folder.name)
