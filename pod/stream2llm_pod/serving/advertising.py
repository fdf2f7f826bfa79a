"""Under which address routers reach this pod's HTTP endpoints."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

_WILDCARDS = ("", "0.0.0.0", "::")


def advertised_url(host: str, port: int, redis_url: str, *, tls: bool = False) -> str:
    """The base URL for the heartbeat: `host` where it is one address, else ours in the network that Redis is in.

    Routers are in that network too. Asking the kernel for a route sends nothing.
    """
    if host in _WILDCARDS:
        host = _source_address(urlsplit(redis_url).hostname or "127.0.0.1")
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{shown}:{port}"


def _source_address(peer: str) -> str:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()
