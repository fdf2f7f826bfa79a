"""A real Kubernetes API as plain processes: etcd and kube-apiserver, and on demand controllers and scheduler.

Everything is in one folder. Alone it listens on loopback and any user can run it: pods are accepted and never run. With
a node it is inside the node's network.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import programs
from authority import Authority
from components import Components
from network import API_SERVICE_IP, SERVICE_CIDR

from stream2llm_bench.demo.ports import free_port


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where the components are. prefix: the command that runs another one there."""

    address: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()
    has_node: bool = False


class ControlPlane:
    """Start it as a context. `stop_one` and `start_one` take a component away and bring it back on the same data."""

    def __init__(
        self,
        work: Path,
        *,
        kubernetes: str = programs.NEWEST,
        controllers: bool = False,
        scheduler: bool = False,
        surroundings: Surroundings | None = None,
    ) -> None:
        self.work, self.kubernetes = work, kubernetes
        self.surroundings = surroundings or Surroundings()
        wanted = {
            "etcd": True,
            "kube-apiserver": True,
            "kube-controller-manager": controllers,
            "kube-scheduler": scheduler,
        }
        self._names = [name for name, is_wanted in wanted.items() if is_wanted]
        self.paths = programs.ensure(*self._names, "kubectl", kubernetes=kubernetes)
        self.ports = {name: free_port() for name in ("etcd", "peer", "api", "kcm", "scheduler")}
        self.components = Components(work, self.surroundings.prefix)
        self._authority: Authority | None = None

    @property
    def url(self) -> str:
        return f"https://{self.surroundings.address}:{self.ports['api']}"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.work / "admin.conf"

    def __enter__(self) -> ControlPlane:
        self.work.mkdir(parents=True, exist_ok=True)
        names = tuple(dict.fromkeys((self.surroundings.address, "127.0.0.1", API_SERVICE_IP)))
        self._authority = Authority(self.work, self.url, names)
        self._write_audit_policy()
        try:
            for name in self._names:
                self.start_one(name)
                if name == "kube-apiserver":
                    self.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.components.stop_all()

    def start_one(self, name: str) -> None:
        self.components.start(name, self._command(name))

    def stop_one(self, name: str, *, hard: bool = False) -> None:
        self.components.stop(name, hard=hard)

    def wait_ready(self, timeout_s: float = 120.0) -> None:
        """Returns once the API server answers that it is ready. Raises RuntimeError with a log if it has ended."""

        def ready() -> bool:
            request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": "Bearer admin-token"})
            context = ssl.create_default_context(cafile=str(self.work / "ca.crt"))
            with urllib.request.urlopen(request, context=context, timeout=5) as answer:
                return bool(answer.read() == b"ok")

        self.components.wait("the API server", ready, timeout_s)

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

    def write_kubeconfig(self, name: str, token: str) -> Path:
        """A kubeconfig that logs in with this token, for programs under test."""
        assert self._authority is not None, "not started"
        return self._authority.write_kubeconfig(name, token)

    def _write_audit_policy(self) -> None:
        """Who asked for what, and what came of it: tests of rights read it."""
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
        }
        (self.work / "audit.json").write_text(json.dumps(policy))

    def _command(self, name: str) -> list[str]:
        options = {
            "etcd": self._etcd,
            "kube-apiserver": self._api_server,
            "kube-controller-manager": self._controller_manager,
            "kube-scheduler": self._scheduler,
        }[name]()
        return [str(self.paths[name]), *(f"--{option}={value}" for option, value in options.items())]

    def _etcd(self) -> dict[str, str]:
        client, peer = self._etcd_url, f"http://127.0.0.1:{self.ports['peer']}"
        return {
            "data-dir": f"{self.work}/etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "unsafe-no-fsync": "true",
        }

    @property
    def _etcd_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['etcd']}"

    def _api_server(self) -> dict[str, str]:
        work = self.work
        options = {
            "etcd-servers": self._etcd_url,
            "cert-dir": f"{work}/certs",
            "tls-cert-file": f"{work}/apiserver.crt",
            "tls-private-key-file": f"{work}/apiserver.key",
            "bind-address": self.surroundings.address,
            "secure-port": str(self.ports["api"]),
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
        if self.surroundings.has_node:
            options |= {
                "advertise-address": self.surroundings.address,
                "kubelet-client-certificate": f"{work}/kubelet-client.crt",
                "kubelet-client-key": f"{work}/kubelet-client.key",
                # No DNS has the names of nodes.
                "kubelet-preferred-address-types": "InternalIP",
            }
        else:
            # Loopback may not be an endpoint of the Service `kubernetes`.
            options["endpoint-reconciler-type"] = "none"
        return options

    def _controller_manager(self) -> dict[str, str]:
        return {
            "leader-elect": "false",
            "bind-address": "127.0.0.1",
            "secure-port": str(self.ports["kcm"]),
            "cert-dir": f"{self.work}/kcm",
            "kubeconfig": f"{self.work}/kcm.conf",
            "service-account-private-key-file": f"{self.work}/sa.key",
            "root-ca-file": f"{self.work}/ca.crt",
            "use-service-account-credentials": "true",
            # Tests of autoscaling would wait for these.
            "horizontal-pod-autoscaler-sync-period": "1s",
            "horizontal-pod-autoscaler-initial-readiness-delay": "0s",
        }

    def _scheduler(self) -> dict[str, str]:
        return {
            "leader-elect": "false",
            "bind-address": "127.0.0.1",
            "secure-port": str(self.ports["scheduler"]),
            "cert-dir": f"{self.work}/scheduler",
            "kubeconfig": f"{self.work}/scheduler.conf",
        }
