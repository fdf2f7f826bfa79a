"""Tells routers each second that this pod lives, what it serves and how busy it is."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

from stream2llm.keys import PoolKeys
from stream2llm.settings import FORGOTTEN_MS, HEARTBEAT_LAPSE_MS, HEARTBEAT_MS, PROTOCOL_VERSION
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
    """What the pod holds now. `kv_usage` is a share of 1, `prefill_tokens_per_s` None where it is not known."""

    open_streams: int
    backlog_tokens: int
    kv_usage: float
    prefill_tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """For people who watch the pool; nothing is decided by them. Totals count from the pod's start."""

    memory_preemptions: int = 0
    policy_preemptions: int = 0
    recomputed_tokens: int = 0
    ttft_ms: dict[str, float] | None = None
    """`p50`, `p95` and `count` of the last minutes; None where there was no first token."""


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


def heartbeat(identity: Identity, state: str, load: Load, figures: Figures) -> str:
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
        "figures": {
            "preemptions": {"memory": figures.memory_preemptions, "policy": figures.policy_preemptions},
            "recomputed_tokens": figures.recomputed_tokens,
            "ttft_ms": figures.ttft_ms,
        },
        "prefill_tokens_per_s": None if load.prefill_tokens_per_s is None else round(load.prefill_tokens_per_s, 1),
    }
    return json.dumps(beat, separators=(",", ":"))[:-1]


class Heartbeats:
    """Beats once a second; `state`, `load` and `figures` are asked each time.

    `fenced` is called, and answers with the name of a new incarnation, when routers have given this one up: the pod was
    silent for too long, another pod has taken its name, or Redis has forgotten everything.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        keys: PoolKeys,
        identity: Identity,
        clock: RedisClock,
        state: Callable[[], str],
        load: Callable[[], Load],
        figures: Callable[[], Figures],
        fenced: Callable[[], str],
    ) -> None:
        self._client = client
        self._keys = keys
        self._identity = identity
        self._clock = clock
        self._state = state
        self._load = load
        self._figures = figures
        self._fenced = fenced
        self._rival: str | None = None
        self._registered = False
        self._retired = False
        self._wake = asyncio.Event()
        self._beaten_s: float | None = None

    @property
    def registered(self) -> bool:
        """Whether routers know this incarnation."""
        return self._registered

    @property
    def silent_s(self) -> float:
        """Seconds since the last heartbeat that arrived; infinite before the first."""
        return float("inf") if self._beaten_s is None else time.monotonic() - self._beaten_s

    async def run(self) -> None:
        """Beat until retired or cancelled; a failed beat is tried again at the next one."""
        while not self._retired:
            try:
                await self.beat()
            except (RedisError, OSError) as error:
                logger.warning("heartbeat failed: %s", error)
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_MS / 1000):
                    await self._wake.wait()

    def soon(self) -> None:
        """What the heartbeat says has changed: do not wait for the next one."""
        self._wake.set()

    async def beat(self) -> None:
        """Write one heartbeat and set the clock by the server's. Does nothing once this incarnation is retired."""
        if self._retired:
            return
        now_ms, before, taken = await self._write(first=not self._registered and self._rival is None)
        if self._retired:
            # It was on its way when this incarnation was taken off the list: that is no sign that routers gave it up.
            return
        if taken:
            self._registered, self._rival, self._beaten_s = True, None, time.monotonic()
            self._warn_of_rival(before, now_ms)
        elif self._registered:
            self._registered = False
            # While the other pod lives, this one must not take the name back, or both would do nothing else.
            self._rival = _alive(before, now_ms)
            logger.error(
                "this pod was given up by the routers%s; its streams are others' now",
                f", as another pod has taken the name {self._identity.pod!r}" if self._rival else "",
            )
            self._identity = replace(self._identity, incarnation=self._fenced())
        elif _alive(before, now_ms) is None:
            self._rival = None

    async def retire(self, *, failed: bool = False) -> None:
        """Take this incarnation off the list of pods and drop its log; `failed` if something here has ended it."""
        self._retired = True
        self._wake.set()
        pod, incarnation = self._identity.pod, self._identity.incarnation
        keys = [self._keys.pods, self._keys.log(pod, incarnation), self._keys.incarnations, self._keys.gone]
        keys.append(self._keys.assigned(pod, incarnation))
        await self._call("retire", keys, pod, incarnation, int(failed), FORGOTTEN_MS)

    async def _write(self, *, first: bool) -> tuple[int, bytes, bool]:
        pod, incarnation = self._identity.pod, self._identity.incarnation
        text = heartbeat(self._identity, self._state(), self._load(), self._figures())
        keys = [self._keys.pods, self._keys.log(pod, incarnation), self._keys.incarnations]
        answer = await self._call("heartbeat", keys, pod, incarnation, text, LOG_LIVE_MS, int(first), FORGOTTEN_MS)
        now_ms = int(answer[0])
        self._clock.observe(now_ms)
        return now_ms, answer[1], bool(answer[2])

    async def _call(self, name: str, keys: list[str], *arguments: str | int) -> Any:
        script = scripts.load(name)
        try:
            return await self._client.evalsha(script.sha, len(keys), *keys, *arguments)
        except redis.exceptions.NoScriptError:
            return await self._client.eval(script.source, len(keys), *keys, *arguments)

    def _warn_of_rival(self, before: bytes, now_ms: int) -> None:
        """The start of a pod whose name is in use is a restart, or a mistake that somebody must hear of."""
        other = _alive(before, now_ms)
        if other is not None and other != self._identity.incarnation:
            logger.warning(
                "a pod named %r was there until now; if it still is, give one of them another --pod name",
                self._identity.pod,
            )


def _alive(raw: bytes, now_ms: int) -> str | None:
    """The incarnation of a heartbeat that has not lapsed."""
    try:
        beat = json.loads(raw) if raw else {}
        incarnation, age_ms = beat.get("incarnation"), now_ms - int(beat.get("time_ms", 0))
    except (ValueError, TypeError, AttributeError):
        return None
    return str(incarnation) if incarnation and age_ms < HEARTBEAT_LAPSE_MS else None
