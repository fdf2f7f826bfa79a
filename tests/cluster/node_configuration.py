"""The configuration files of a node's programs, and the objects that a cluster needs for them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from network import DNS_IP, NODE_IP, POD_CIDR

PAUSE_IMAGE = "localhost/stream2llm-pause:latest"
DNS_PORT = 1053
PLUGINS = "/usr/lib/cni"
# They look for devices and file systems that nobody needs here.
UNUSED = ("nri.v1.nri", "snapshotter.v1.devmapper", "snapshotter.v1.btrfs", "snapshotter.v1.zfs")


def write(work: Path, run: Path, cgroup: str, node: str) -> None:
    """work: the folder of logs and data; run: that of sockets, on a file system in memory."""
    files: dict[str, Any] = {
        "containerd.toml": _containerd(work, run),
        "cni/10-pods.conflist": _pod_network(work),
        "kubelet.yaml": _kubelet(work, run, cgroup),
        "kube-proxy.yaml": _kube_proxy(work, node),
        "Corefile": _dns(work),
    }
    for name, content in files.items():
        path = work / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))


def objects() -> dict[str, Any]:
    """Rights of kube-proxy, and the DNS Service: CoreDNS is a process of the node and no pod."""
    protocols = ("UDP", "TCP")
    ports = [{"name": each.lower(), "port": 53, "targetPort": DNS_PORT, "protocol": each} for each in protocols]
    endpoints = [{"name": each.lower(), "port": DNS_PORT, "protocol": each} for each in protocols]
    rbac = "rbac.authorization.k8s.io"
    items: list[dict[str, Any]] = [
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "kube-proxy"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "system:node-proxier"},
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": "system:kube-proxy"}],
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system"},
            "spec": {"clusterIP": DNS_IP, "ports": ports},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "addressType": "IPv4",
            "metadata": {
                "name": "kube-dns",
                "namespace": "kube-system",
                "labels": {"kubernetes.io/service-name": "kube-dns"},
            },
            "ports": endpoints,
            "endpoints": [{"addresses": [NODE_IP]}],
        },
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _containerd(work: Path, run: Path) -> str:
    disabled = json.dumps([f"io.containerd.{name}" for name in UNUSED])
    runc = shutil.which("runc", path="/usr/sbin:/usr/bin:/sbin:/bin") or "runc"
    return f"""version = 3
root = "{work}/containerd"
state = "{run}/containerd"
disabled_plugins = {disabled}
[grpc]
address = "{run}/containerd.sock"
[ttrpc]
address = "{run}/containerd.sock.ttrpc"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{PLUGINS}"]
conf_dir = "{work}/cni"
"""


def _pod_network(work: Path) -> dict[str, Any]:
    addresses = {
        "type": "host-local",
        "dataDir": f"{work}/addresses",
        "ranges": [[{"subnet": POD_CIDR}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "hairpinMode": True, "ipam": addresses}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, ports]}


def _kubelet(work: Path, run: Path, cgroup: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        # Machines with version 1 are still about; the newest kubelets refuse it unless told.
        "failCgroupV1": False,
        "failSwapOn": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "enforceNodeAllocatable": [],
        "containerRuntimeEndpoint": f"unix://{run}/containerd.sock",
        # This machine's disk is not the node's to clean.
        "evictionHard": {"memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "address": NODE_IP,
        "healthzPort": 0,
        "resolvConf": "",
        "podLogsDir": f"{work}/pod-logs",
        "clusterDNS": [DNS_IP],
        "clusterDomain": "cluster.local",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{work}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        # Tests wait for what these report.
        "nodeStatusReportFrequency": "10s",
        "syncFrequency": "5s",
    }


def _kube_proxy(work: Path, node: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": POD_CIDR,
        "hostnameOverride": node,
        "clientConnection": {"kubeconfig": f"{work}/kube-proxy.conf"},
        # This setting is the machine's, and not the namespace's.
        "conntrack": {"maxPerCore": 0},
        "bindAddress": NODE_IP,
        "healthzBindAddress": f"{NODE_IP}:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    }


def _dns(work: Path) -> str:
    return f""".:{DNS_PORT} {{
  bind {NODE_IP}
  errors
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {work}/admin.conf test
    pods insecure
  }}
}}
"""
