"""The pods that are there, from their heartbeats, with what was given to them since."""

from __future__ import annotations

from collections import Counter
from typing import Any

import redis

from stream2llm.keys import PoolKeys
from stream2llm_router.assigning import Pod, choose_pod, parse_heartbeat


class Fleet:
    """Refreshed by the forwarding loop; `choose` counts what it hands out, so that a burst spreads over the pods."""

    def __init__(self, client: redis.Redis, keys: PoolKeys) -> None:
        self._client, self._keys = client, keys
        self._pods: list[Pod] = []
        self._recent: Counter[str] = Counter()
        self._beats: dict[str, int] = {}
        self._now_ms = 0

    def refresh(self) -> None:
        """Read all heartbeats and the server's time."""
        raw: Any = self._client.hgetall(self._keys.pods)
        moment: Any = self._client.time()
        seconds, micros = moment
        self._now_ms = seconds * 1000 + micros // 1000
        found = (parse_heartbeat(name.decode("utf-8", "surrogateescape"), beat) for name, beat in raw.items())
        self._pods = [pod for pod in found if pod is not None and pod.name.isprintable()]
        for pod in self._pods:
            if self._beats.get(pod.incarnation) != pod.beat_ms:
                self._recent.pop(pod.incarnation, None)
        self._beats = {pod.incarnation: pod.beat_ms for pod in self._pods}

    def choose(self, model: str = "") -> Pod | None:
        pod = choose_pod(self._pods, self._now_ms, self._recent, model=model)
        if pod is not None:
            self._recent[pod.incarnation] += 1
        return pod

    @property
    def pods(self) -> list[Pod]:
        """All pods whose heartbeat can be read, silent ones included."""
        return self._pods
