"""Tells routers each second that this pod lives, what it serves and how busy it is."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

from stream2llm.keys import PoolKeys
from stream2llm.settings import HEARTBEAT_LAPSE_MS, HEARTBEAT_MS, PROTOCOL_VERSION
from stream2llm_pod.serving import scripts
from stream2llm_pod.serving.clocks import RedisClock

logger = logging.getLogger(__name__)

# A log that no heartbeat has touched for this long belongs to a pod that is gone.
LOG_LIVE_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the pod can hold."""

    max_open_streams: int
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class Load:
    """What the pod holds now. `kv_usage` is a share of 1."""

    open_streams: int
    backlog_tokens: int
    kv_usage: float


@dataclass(frozen=True, slots=True)
class Identity:
    """What does not change while this process lives."""

    pod: str
    incarnation: str
    fingerprint: str
    models: tuple[str, ...]
    max_model_len: int
    capacity: Capacity
    url: str
    """Base URL of the pod's HTTP endpoints, as routers reach them."""


def fingerprint(parts: dict[str, Any]) -> str:
    """A short digest of everything that decides which tokens a prompt yields (model, revision, dtype, …)."""
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def heartbeat(identity: Identity, state: str, load: Load) -> str:
    """The heartbeat's JSON object without its time, which the server adds, and without its closing brace."""
    beat = {
        "incarnation": identity.incarnation,
        "protocol": PROTOCOL_VERSION,
        "fingerprint": identity.fingerprint,
        "state": state,
        "models": list(identity.models),
        "max_model_len": identity.max_model_len,
        "url": identity.url,
        "capacity": {
            "max_open_streams": identity.capacity.max_open_streams,
            "kv_tokens": identity.capacity.kv_tokens,
        },
        "load": {
            "open_streams": load.open_streams,
            "backlog_tokens": load.backlog_tokens,
            "kv_usage": round(load.kv_usage, 4),
        },
        "prefill_tokens_per_s": None,
    }
    return json.dumps(beat, separators=(",", ":"))[:-1]


class Heartbeats:
    """Beats once a second; `state` and `load` are asked each time."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        keys: PoolKeys,
        identity: Identity,
        clock: RedisClock,
        state: Callable[[], str],
        load: Callable[[], Load],
    ) -> None:
        self._client = client
        self._keys = keys
        self._identity = identity
        self._clock = clock
        self._state = state
        self._load = load
        self._rival: str | None = None

    async def run(self) -> None:
        """Beat until cancelled; a failed beat is tried again at the next one."""
        while True:
            try:
                await self.beat()
            except (RedisError, OSError) as error:
                logger.warning("heartbeat failed: %s", error)
            await asyncio.sleep(HEARTBEAT_MS / 1000)

    async def beat(self) -> None:
        """Write one heartbeat and set the clock by the server's."""
        text = heartbeat(self._identity, self._state(), self._load())
        answer = await self._call("heartbeat", self._identity.pod, text, LOG_LIVE_MS)
        now_ms = int(answer[0])
        self._clock.observe(now_ms)
        self._warn_of_rival(answer[1], now_ms)

    async def retire(self) -> None:
        """Take this incarnation off the list of pods and drop its log."""
        await self._call("retire", self._identity.pod, self._identity.incarnation)

    async def _call(self, name: str, *arguments: str | int) -> Any:
        script = scripts.load(name)
        log = self._keys.log(self._identity.pod, self._identity.incarnation)
        try:
            return await self._client.evalsha(script.sha, 2, self._keys.pods, log, *arguments)
        except redis.exceptions.NoScriptError:
            return await self._client.eval(script.source, 2, self._keys.pods, log, *arguments)

    def _warn_of_rival(self, before: bytes | None, now_ms: int) -> None:
        """Two live pods of one name overwrite each other's heartbeat: a mistake that somebody must hear of."""
        try:
            beat = json.loads(before) if before else {}
            other, age_ms = beat.get("incarnation"), now_ms - int(beat.get("time_ms", 0))
        except (ValueError, TypeError, AttributeError):
            return
        if other and other != self._identity.incarnation and age_ms < HEARTBEAT_LAPSE_MS and other != self._rival:
            self._rival = other
            logger.warning(
                "another pod named %r was alive %d ms ago; if it still is, give one of them another --pod name",
                self._identity.pod,
                age_ms,
            )
