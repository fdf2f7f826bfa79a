"""One router in this process, its fleet's clock in hand, and pods that are nothing but heartbeats."""

from __future__ import annotations

import json
from typing import Any

import redis
from prometheus_client import CollectorRegistry

from stream2llm import settings
from stream2llm.entries import Entry, Open, encode
from stream2llm.keys import PoolKeys
from stream2llm_router.forwarding import Forwarder
from stream2llm_router.metrics import RouterMetrics

KEYS = PoolKeys("tests/recovery")
TENANT = "default"


class Pool:
    """One router on one server, its fleet's clock in hand, and pods that are nothing but heartbeats."""

    def __init__(self, client: redis.Redis, *, open_wait_ms: int = settings.OPEN_WAIT_MS) -> None:
        self.client = client
        self._open_wait_ms = open_wait_ms
        self.now_s = 0.0
        self.new_router()

    def new_router(self) -> None:
        self.client.delete(KEYS.routers, KEYS.lease(TENANT))
        metrics = RouterMetrics(KEYS.pool, CollectorRegistry())
        self.forwarder = Forwarder(self.client, KEYS, metrics, open_wait_ms=self._open_wait_ms, block_ms=1)
        self.forwarder._fleet._clock = lambda: self.now_s
        self.forwarder._fleet.refresh()
        self.now_s += 100.0

    def beat(self, pod: str, incarnation: str = "1", *, age_ms: int = 0, **changes: Any) -> None:
        seconds, micros = self.client.time()
        beat = {
            "incarnation": incarnation,
            "protocol": 1,
            "fingerprint": "f",
            "state": "ready",
            "capacity": {"max_open_streams": 8, "kv_tokens": 1000},
            "load": {"open_streams": 0, "backlog_tokens": 0, "kv_usage": 0.0},
            "time_ms": seconds * 1000 + micros // 1000 - age_ms,
        }
        self.client.hset(KEYS.pods, pod, json.dumps(beat | changes))
        self.client.sadd(KEYS.incarnations, f"{pod}:{incarnation}")

    def send(self, *entries: Entry) -> None:
        for entry in entries:
            self.client.xadd(KEYS.ingress(TENANT), encode(entry))

    def open(self, *streams: str) -> None:
        self.send(*(Open(stream, prompt="{context}") for stream in streams))
        self.turn()

    def turn(self) -> None:
        # Each look at the fleet follows the last by less than what counts as an outage.
        self.now_s += 1.0
        self.forwarder._fleet._heard_s = max(self.forwarder._fleet._heard_s, self.now_s - 1.0)
        self.forwarder._refresh_at_s = 0.0
        self.forwarder.turn()

    def route(self, stream: str = "s") -> dict[str, str]:
        found: Any = self.client.hgetall(KEYS.route(TENANT, stream))
        return {name.decode(): value.decode() for name, value in found.items()}

    def place(self, stream: str = "s") -> tuple[str, str, int]:
        route = self.route(stream)
        return route["state"], route["pod"], int(route["attempt"])

    def log(self, pod: str, incarnation: str = "1") -> list[dict[bytes, bytes]]:
        return [fields for _, fields in self.client.xrange(KEYS.log(pod, incarnation))]

    def errors(self, stream: str = "s") -> list[str]:
        events = [fields for _, fields in self.client.xrange(KEYS.reply(TENANT, stream))]
        return [json.loads(fields[b"data"])["code"] for fields in events if fields[b"event"] == b"error"]

    def usage(self) -> dict[str, int]:
        found: Any = self.client.hgetall(KEYS.usage(TENANT))
        return {name.decode(): int(value) for name, value in found.items()}
