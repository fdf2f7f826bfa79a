"""TCP ports for servers that a demo, a bench or a test starts."""

from __future__ import annotations

import random
import socket

from stream2llm_bench.failing import Unavailable

# Below the ports that Linux gives to outgoing connections (from 32,768 on): one of those may take a port
# between the look and the server's bind. Redis Cluster also listens on its port + 10,000.
FIRST, LAST = 10_000, 22_700
CLUSTER_BUS_OFFSET = 10_000
TRIES = 200


def free_port() -> int:
    """A TCP port of 127.0.0.1 on which nobody listens now, nor on its Redis Cluster bus port.

    Raises Unavailable if none is found.
    """
    draw = random.SystemRandom()
    for _ in range(TRIES):
        port = draw.randint(FIRST, LAST)
        if _is_free(port) and _is_free(port + CLUSTER_BUS_OFFSET):
            return port
    raise Unavailable(f"no free port on 127.0.0.1: {TRIES} of {FIRST} to {LAST} were tried")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
