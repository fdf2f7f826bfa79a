"""KEDA's operator and its adapter as processes, and the API that the adapter serves made part of a control plane's."""

from __future__ import annotations

import base64
import json
import socket
from pathlib import Path
from typing import Any

import foreign_crds
import programs
import trustme
from control_plane import ControlPlane
from kube_api import KubeApi

from stream2llm_bench.demo.ports import free_port

NAMESPACE = "keda"
KINDS = (
    *("scaledobjects", "scaledjobs", "triggerauthentications", "clustertriggerauthentications"),
    *("cloudeventsources", "clustercloudeventsources"),
)
EXTERNAL_METRICS = "external.metrics.k8s.io"


class Keda:
    """Installs the kinds; `start` and `stop` are for both programs."""

    def __init__(self, plane: ControlPlane, api: KubeApi, folder: Path) -> None:
        self._plane, self._api, self._folder = plane, api, folder
        self._paths = programs.ensure("keda-operator", "keda-adapter")
        self.ports = {name: free_port() for name in ("metrics", "health", "grpc", "adapter", "adapter-metrics")}
        folder.mkdir(parents=True, exist_ok=True)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(folder / "ca.crt")
        certificate = authority.issue_cert(
            "localhost", f"keda-operator.{NAMESPACE}.svc", f"keda-adapter.{NAMESPACE}.svc"
        )
        certificate.private_key_pem.write_to_path(folder / "tls.key")
        for number, pem in enumerate(certificate.cert_chain_pems):
            pem.write_to_path(folder / "tls.crt", append=number > 0)

    def install(self) -> None:
        """KEDA's kinds, its namespace, and the API service that leads to the adapter."""
        self._plane.kubectl("create", "namespace", NAMESPACE)
        for plural in KINDS:
            self._plane.kubectl("apply", "--server-side", "-f", str(foreign_crds.crd(plural)))
        self._plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
        serve_external_metrics(
            self._api, NAMESPACE, "keda-adapter", self.ports["adapter"], (self._folder / "ca.crt").read_bytes()
        )

    def start(self) -> None:
        self.start_operator()
        work, ports = self._plane.work, self.ports
        kubeconfig = str(self._plane.kubeconfig)
        options = {
            **dict.fromkeys(
                ("kubeconfig", "lister-kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"), kubeconfig
            ),
            "secure-port": str(ports["adapter"]),
            "bind-address": "127.0.0.1",
            "port": str(ports["adapter-metrics"]),
            "tls-cert-file": str(self._folder / "tls.crt"),
            "tls-private-key-file": str(self._folder / "tls.key"),
            "client-ca-file": str(work / "ca.crt"),
            "cert-dir": str(self._folder),
            "metrics-service-address": f"localhost:{ports['grpc']}",
        }
        command = [str(self._paths["keda-adapter"]), *(f"--{name}={value}" for name, value in options.items())]
        self._plane.components.start("keda-adapter", ["/usr/bin/env", *self._environment(), *command])
        self._plane.components.wait("KEDA's adapter", self._serves, 180)

    def start_operator(self) -> None:
        options = {
            "cert-dir": str(self._folder),
            "enable-cert-rotation": "false",
            "enable-apiservice-patching": "false",
            "enable-webhook-patching": "false",
            "metrics-bind-address": f"127.0.0.1:{self.ports['metrics']}",
            "health-probe-bind-address": f"127.0.0.1:{self.ports['health']}",
            "metrics-service-bind-address": f"127.0.0.1:{self.ports['grpc']}",
        }
        command = [str(self._paths["keda-operator"]), *(f"--{name}={value}" for name, value in options.items())]
        self._plane.components.start("keda-operator", ["/usr/bin/env", *self._environment(), *command])
        # The adapter tries ever more seldom to reach it.
        self._plane.components.wait("KEDA's operator", lambda: _listens(self.ports["grpc"]), 180)

    def stop(self, *, hard: bool = False) -> None:
        for name in ("keda-adapter", "keda-operator"):
            self._plane.components.stop(name, hard=hard)

    def _environment(self) -> list[str]:
        kubeconfig = f"KUBECONFIG={self._plane.kubeconfig}"
        return [
            kubeconfig,
            f"KEDA_CLUSTER_OBJECT_NAMESPACE={NAMESPACE}",
            f"POD_NAMESPACE={NAMESPACE}",
            "WATCH_NAMESPACE=",
        ]

    def _serves(self) -> bool:
        return external_metrics_are_served(self._api)


def serve_external_metrics(api: KubeApi, namespace: str, service: str, port: int, authority: bytes) -> None:
    """Make `external.metrics.k8s.io` what a server on this machine answers: a name may be outside, loopback not."""
    ports = [{"name": "https", "port": port, "targetPort": port}]
    body: dict[str, Any] = {
        "metadata": {"name": service},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    }
    body["spec"]["ports"] = ports
    api.create(f"/api/v1/namespaces/{namespace}/services", body)
    made = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"v1beta1.{EXTERNAL_METRICS}"},
        "spec": {
            "group": EXTERNAL_METRICS,
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "caBundle": base64.b64encode(authority).decode(),
            "service": {"namespace": namespace, "name": service, "port": port},
        },
    }
    api.create("/apis/apiregistration.k8s.io/v1/apiservices", made)


def external_metrics_are_served(api: KubeApi) -> bool:
    made = api.get(f"/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.{EXTERNAL_METRICS}")
    conditions = {each["type"]: each["status"] for each in made.get("status", {}).get("conditions", ())}
    return conditions.get("Available") == "True"


def _listens(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=2):
        return True


def described(api: KubeApi, namespace: str, name: str) -> str:
    """What KEDA and the autoscaler say of a pool, for a failed test."""
    scaled = api.find(f"/apis/keda.sh/v1alpha1/namespaces/{namespace}/scaledobjects/{name}") or {}
    scaler = api.find(f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers/keda-hpa-{name}") or {}
    return json.dumps([scaled.get("status"), scaler.get("status")], indent=1)
