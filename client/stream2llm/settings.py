"""Every default in one place. Each is also a command-line flag and an environment variable `STREAM2LLM_<NAME>`."""

from __future__ import annotations

PROTOCOL_VERSION = 1
"""Version of the keys, entries and scripts; a router and a pod work together only if theirs are equal."""

IDLE_TIMEOUT_MS = 120_000
"""A stream that nobody touches for this long ends."""
SEPARATOR = "\n\n"
"""Put between context items of text."""
MARKER = "{context}"
"""Where the context goes in the messages or the prompt."""

MAX_CHUNK_BYTES = 1 << 20
"""One chunk, or one context item, in bytes of UTF-8 (or of the JSON token list)."""
MAX_STREAM_BYTES = 16 << 20
"""All entries of one stream together."""
MAX_CONTEXT_ITEMS = 4_096
"""Items in one update."""
MAX_ID_CHARS = 128
"""Chunk and context item ids."""
MAX_TIMEOUT_MS = 24 * 3_600_000
"""Idle timeout and deadline."""
FORGOTTEN_MS = MAX_TIMEOUT_MS + 3_600_000
"""Expiry of what is in use: above the longest time that it may be silent, so that only what is forgotten expires."""

RETAIN_S = 600
"""How long the reply and the route of an ended stream are kept, in seconds."""
MAX_REJECTED = 1_000
"""About how many entries `rejected` keeps per tenant."""

LEASE_MS = 5_000
"""A router holds a tenant for this long without renewing."""
LEASE_RENEW_MS = 1_000
HEARTBEAT_MS = 1_000
HEARTBEAT_LAPSE_MS = 10_000
"""A pod that has been silent for this long gets no streams."""
OPEN_WAIT_MS = 30_000
"""How long an open waits for a pod before it ends with `overloaded`."""

MAX_BATCH_ENTRIES = 100
MAX_BATCH_BYTES = 256 << 10
"""A forwarding script moves at most this many entries and, past the first, this many bytes."""

BLOCK_MS = 1_000
"""How long blocking reads wait in the server."""
SOCKET_TIMEOUT_S = 15.0
"""Above every blocking read, so that a quiet stream is not taken for a dead server."""

SEND_TRIES = 5
"""How often a client writes an entry before it gives Redis up."""
READ_OUTAGE_S = 30.0
"""How long a reader waits for a Redis server that is away."""
ACCEPT_TIMEOUT_S = 60.0
"""A reader that has seen no event at all stops waiting after this; above OPEN_WAIT_MS, when a router would tell."""
