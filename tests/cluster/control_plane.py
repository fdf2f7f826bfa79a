"""A real Kubernetes API as plain processes: etcd and kube-apiserver, and on demand the controller manager.

Loopback only, any user, everything in one folder. No node: pods are accepted and never run.
"""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import programs
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from stream2llm_bench.demo.ports import free_port

SERVICE_CIDR, API_SERVICE_IP = "10.96.0.0/16", "10.96.0.1"
USERS = {"admin": ("admin", "system:masters"), "kcm": ("system:kube-controller-manager", "")}


class ControlPlane:
    """Start it as a context. `stop_one` and `start_one` take a component away and bring it back on the same data."""

    def __init__(self, work: Path, *, kubernetes: str = programs.NEWEST, controllers: bool = False) -> None:
        self.work, self.kubernetes = work, kubernetes
        self.components = ["etcd", "kube-apiserver", *(["kube-controller-manager"] if controllers else [])]
        self.paths = programs.ensure(*self.components, "kubectl", kubernetes=kubernetes)
        self.ports = {name: free_port() for name in ("etcd", "peer", "api", "kcm")}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.ports['api']}"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.work / "admin.conf"

    def __enter__(self) -> ControlPlane:
        self._prepare()
        try:
            for name in self.components:
                self.start_one(name)
                if name == "kube-apiserver":
                    self.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self.processes)):
            self.stop_one(name)

    def start_one(self, name: str) -> None:
        with (self.work / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self._command(name), stdout=log, stderr=log, cwd=self.work, env={**os.environ, "HOME": str(self.work)}
            )

    def stop_one(self, name: str, *, hard: bool = False) -> None:
        process = self.processes.pop(name)
        process.kill() if hard else process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def wait_ready(self, timeout_s: float = 120.0) -> None:
        """Returns once the API server answers that it is ready. Raises RuntimeError with a log if it has ended."""

        def ready() -> bool:
            request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": "Bearer admin-token"})
            context = ssl.create_default_context(cafile=str(self.work / "ca.crt"))
            with urllib.request.urlopen(request, context=context, timeout=5) as answer:
                return bool(answer.read() == b"ok")

        self._wait(ready, timeout_s)

    def _wait(self, ready: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(OSError):
                if ready():
                    return
            for name, process in self.processes.items():
                if process.poll() is not None:
                    log = (self.work / f"{name}.log").read_text(errors="replace")
                    raise RuntimeError(f"{name} exited with {process.returncode}: {log[-3000:]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the API server is not ready after {timeout_s:g} s; logs are in {self.work}")
            time.sleep(0.1)

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Runs kubectl as the administrator. Raises RuntimeError with what it said, unless told not to check."""
        result = subprocess.run(
            [str(self.paths["kubectl"]), "--kubeconfig", str(self.kubeconfig), *arguments],
            input=stdin,
            text=True,
            capture_output=True,
        )
        if check and result.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {result.stderr.strip()}")
        return result

    # -------------------------------------------------------------- preparing
    def _prepare(self) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        authority, front = trustme.CA(), trustme.CA()
        authority.cert_pem.write_to_path(self.work / "ca.crt")
        front.cert_pem.write_to_path(self.work / "front-proxy-ca.crt")
        names = ("127.0.0.1", API_SERVICE_IP, "localhost", "kubernetes.default.svc")
        self._write_certificate("apiserver", authority.issue_cert(*names))
        self._write_certificate("front-proxy", front.issue_cert(common_name="front-proxy-client"))
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (self.work / "sa.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        (self.work / "tokens.csv").write_text(
            "".join(f'{name}-token,{user},{name},"{group}"\n' for name, (user, group) in USERS.items())
        )
        # Who asked for what, and what came of it: tests of rights read it.
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
        }
        (self.work / "audit.json").write_text(json.dumps(policy))
        for name in USERS:
            self.write_kubeconfig(name, f"{name}-token")

    def _write_certificate(self, name: str, certificate: trustme.LeafCert) -> None:
        certificate.private_key_pem.write_to_path(self.work / f"{name}.key")
        for number, pem in enumerate(certificate.cert_chain_pems):
            pem.write_to_path(self.work / f"{name}.crt", append=number > 0)

    def write_kubeconfig(self, name: str, token: str) -> Path:
        """A kubeconfig that logs in with this token, for programs under test."""
        path = self.work / f"{name}.conf"
        cluster = {"server": self.url, "certificate-authority": str(self.work / "ca.crt")}
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "users": [{"name": name, "user": {"token": token}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
                }
            )
        )
        return path

    def _command(self, name: str) -> list[str]:
        program, work, etcd = str(self.paths[name]), self.work, f"http://127.0.0.1:{self.ports['etcd']}"
        if name == "etcd":
            peer = f"http://127.0.0.1:{self.ports['peer']}"
            options = {
                "data-dir": f"{work}/etcd",
                "listen-client-urls": etcd,
                "advertise-client-urls": etcd,
                "listen-peer-urls": peer,
                "initial-advertise-peer-urls": peer,
                "initial-cluster": f"default={peer}",
                "unsafe-no-fsync": "true",
            }
        elif name == "kube-apiserver":
            options = {
                "etcd-servers": etcd,
                "cert-dir": f"{work}/certs",
                "tls-cert-file": f"{work}/apiserver.crt",
                "tls-private-key-file": f"{work}/apiserver.key",
                "bind-address": "127.0.0.1",
                "secure-port": str(self.ports["api"]),
                # Loopback may not be an endpoint of the Service `kubernetes`.
                "endpoint-reconciler-type": "none",
                "service-cluster-ip-range": SERVICE_CIDR,
                "token-auth-file": f"{work}/tokens.csv",
                "client-ca-file": f"{work}/ca.crt",
                "authorization-mode": "RBAC",
                "service-account-issuer": "https://kubernetes.default.svc",
                "service-account-signing-key-file": f"{work}/sa.key",
                "service-account-key-file": f"{work}/sa.key",
                "requestheader-client-ca-file": f"{work}/front-proxy-ca.crt",
                "requestheader-allowed-names": "front-proxy-client",
                "requestheader-username-headers": "X-Remote-User",
                "requestheader-group-headers": "X-Remote-Group",
                "requestheader-extra-headers-prefix": "X-Remote-Extra-",
                "proxy-client-cert-file": f"{work}/front-proxy.crt",
                "proxy-client-key-file": f"{work}/front-proxy.key",
                "profiling": "false",
                "audit-policy-file": f"{work}/audit.json",
                "audit-log-path": f"{work}/audit.log",
            }
        else:
            options = {
                "leader-elect": "false",
                "bind-address": "127.0.0.1",
                "secure-port": str(self.ports["kcm"]),
                "cert-dir": f"{work}/kcm",
                "kubeconfig": f"{work}/kcm.conf",
                "service-account-private-key-file": f"{work}/sa.key",
                "root-ca-file": f"{work}/ca.crt",
                "use-service-account-credentials": "true",
            }
        return [program, *(f"--{option}={value}" for option, value in options.items())]
