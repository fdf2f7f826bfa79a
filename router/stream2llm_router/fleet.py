"""The pods that are there, from their heartbeats, with what was given to them since."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis

from stream2llm import settings
from stream2llm.heartbeats import Pod, parse_heartbeat
from stream2llm.keys import PoolKeys
from stream2llm.overview.reading import PodView, pod_view
from stream2llm_router.assigning import NOTHING, Given, Lack, Needs, choose_pod, lack_of

OUTAGE_S = 5.0
"""A router that has not heard Redis for this long takes it that pods could not speak to it either."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of a pod."""

    pod: str
    name: str

    @classmethod
    def of_member(cls, raw: bytes) -> Incarnation:
        """From a member `<pod>:<incarnation>` of the sets that list them."""
        pod, _, name = raw.decode("utf-8", "surrogateescape").rpartition(":")
        return cls(pod, name)

    @property
    def member(self) -> str:
        return f"{self.pod}:{self.name}"


class Fleet:
    """Refreshed by the forwarding loop; `choose` counts what it hands out, so that a burst spreads over the pods."""

    def __init__(self, client: redis.Redis, keys: PoolKeys, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._keys, self._clock = client, keys, clock
        self._pods: list[Pod] = []
        self._given: dict[str, Given] = {}
        self._beats: dict[str, int] = {}
        self._registered: list[Incarnation] = []
        self._heard_s = float("-inf")
        self._in_touch_since_s = float("inf")
        self.gone: list[Incarnation] = []
        self.now_ms = 0

    def refresh(self) -> None:
        """Read all heartbeats and the server's time."""
        pipeline = self._client.pipeline(transaction=False)
        pipeline.hgetall(self._keys.pods)
        pipeline.time()
        pipeline.smembers(self._keys.incarnations)
        pipeline.smembers(self._keys.gone)
        answers: list[Any] = pipeline.execute()
        raw, (seconds, micros), registered, gone = answers
        now_s = self._clock()
        if now_s - self._heard_s > OUTAGE_S:
            self._in_touch_since_s = now_s
        self._heard_s = now_s
        self.now_ms = seconds * 1000 + micros // 1000
        found = (parse_heartbeat(name.decode("utf-8", "surrogateescape"), beat) for name, beat in raw.items())
        self._pods = [pod for pod in found if pod is not None]
        for pod in self._pods:
            if self._beats.get(pod.incarnation) != pod.beat_ms:
                self._given.pop(pod.incarnation, None)
        self._beats = {pod.incarnation: pod.beat_ms for pod in self._pods}
        self._registered = [Incarnation.of_member(member) for member in registered]
        self.gone = [Incarnation.of_member(member) for member in gone]

    def redis_ms(self) -> int:
        """Redis' time now, carried on from the last refresh."""
        return self.now_ms + round((self._clock() - self._heard_s) * 1000)

    def choose(self, needs: Needs) -> Pod | None:
        pod = choose_pod(self._pods, self.now_ms, needs, self._given)
        if pod is not None:
            given = self._given.get(pod.incarnation, NOTHING)
            self._given[pod.incarnation] = Given(given.streams + 1, given.tokens + needs.tokens)
        return pod

    def lack(self, needs: Needs) -> Lack:
        """Why no pod took a stream with these needs."""
        return lack_of(self._pods, self.now_ms, needs)

    def silent(self) -> list[Incarnation]:
        """Incarnations that are over: replaced, or without a heartbeat for a full period in which Redis was there."""
        beats = {(pod.name, pod.incarnation): pod.beat_ms for pod in self._pods}
        patience_over = self._clock() - self._in_touch_since_s >= settings.HEARTBEAT_LAPSE_MS / 1000
        over = []
        for incarnation in self._registered:
            beat_ms = beats.get((incarnation.pod, incarnation.name))
            lapsed = beat_ms is not None and self.now_ms - beat_ms >= settings.HEARTBEAT_LAPSE_MS
            if beat_ms is None or (lapsed and patience_over):
                over.append(incarnation)
        return over

    def leaving(self) -> list[Incarnation]:
        """Pods that want their streams to be given to others."""
        return [Incarnation(pod.name, pod.incarnation) for pod in self._pods if pod.state == "leaving"]

    def serves_other_models_only(self, fingerprint: str) -> bool:
        """Whether pods take streams, and none of them has the model of this fingerprint."""
        fingerprints = {pod.fingerprint for pod in self._pods if pod.state == "ready"}
        return bool(fingerprints) and fingerprint not in fingerprints

    def views(self) -> tuple[PodView, ...]:
        """All pods as people see them."""
        return tuple(pod_view(pod, self.now_ms) for pod in sorted(self._pods, key=lambda pod: pod.name))

    @property
    def pods(self) -> list[Pod]:
        """All pods whose heartbeat can be read, silent ones included."""
        return self._pods
