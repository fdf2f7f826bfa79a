"""The network of a node: a namespace of its own, which this machine reaches through a pair of virtual links.

The iptables rules, bridges and routes of the node are nowhere else, and all of them are gone with the namespace.
The node, pods and Services are reached from this machine by their addresses.
"""

from __future__ import annotations

import ipaddress
import json
import subprocess
from pathlib import Path

NAMESPACE = "stream2llm"
HOST_IP, NODE_IP, LINK_PREFIX = "10.200.0.1", "10.200.0.2", 30
POD_CIDR, SERVICE_CIDR = "10.201.0.0/24", "10.202.0.0/24"
API_SERVICE_IP, DNS_IP = "10.202.0.1", "10.202.0.10"
HOST_LINK, NODE_LINK = "s2l-host", "s2l-node"

# Not `ip netns exec`: that mounts another /sys, in which a kubelet finds no cgroups.
PREFIX = ("nsenter", f"--net=/run/netns/{NAMESPACE}")


class NetworkError(Exception):
    """Why there can be no network for a node."""


def create() -> None:
    """Needs root, and that no network of this machine has the addresses. Raises NetworkError."""
    _refuse_collisions()
    _run("ip", "netns", "add", NAMESPACE)
    _run("ip", "link", "add", HOST_LINK, "type", "veth", "peer", "name", NODE_LINK, "netns", NAMESPACE)
    _run("ip", "address", "add", f"{HOST_IP}/{LINK_PREFIX}", "dev", HOST_LINK)
    _run("ip", "link", "set", HOST_LINK, "up")
    for command in (
        ("ip", "link", "set", "lo", "up"),
        ("ip", "address", "add", f"{NODE_IP}/{LINK_PREFIX}", "dev", NODE_LINK),
        ("ip", "link", "set", NODE_LINK, "up"),
        ("ip", "route", "add", "default", "via", HOST_IP),
        ("sysctl", "-qw", "net.ipv4.ip_forward=1"),
    ):
        _run(*PREFIX, *command)
    for cidr in (POD_CIDR, SERVICE_CIDR):
        _run("ip", "route", "add", cidr, "via", NODE_IP)


def remove() -> None:
    """Takes away what `create` made, routes and links included. Nothing there is no error."""
    if Path(f"/run/netns/{NAMESPACE}").exists():
        _run("ip", "netns", "delete", NAMESPACE)
    if Path(f"/sys/class/net/{HOST_LINK}").exists():
        # The namespace lives on while a process of it does; its link must not.
        _run("ip", "link", "delete", HOST_LINK)


def _refuse_collisions() -> None:
    link = f"{HOST_IP}/{LINK_PREFIX}"
    ours = [ipaddress.ip_network(each, strict=False) for each in (link, POD_CIDR, SERVICE_CIDR)]
    for route in json.loads(_run("ip", "-json", "-4", "route")):
        if route["dst"] == "default":
            continue
        theirs = ipaddress.ip_network(route["dst"], strict=False)
        for network in ours:
            if network.overlaps(theirs):
                raise NetworkError(
                    f"this machine has a route to {theirs} ({route.get('dev')}); the node needs {network}"
                )


def _run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise NetworkError(f"{' '.join(command)}: {result.stderr.strip()}")
    return result.stdout
