"""Which pod answers a request to the OpenAI endpoints. The choice is pure; the directory reads heartbeats."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from urllib.parse import urlsplit

from stream2llm import settings
from stream2llm.heartbeats import Pod, parse_heartbeat
from stream2llm_router.assigning import common_rate, predicted_ttft_s
from stream2llm_router.gateway.streams import Streams

FRESH_S = 1.0


def choose_for_request(
    pods: Iterable[Pod],
    now_ms: int,
    in_flight: Mapping[str, int],
    *,
    model: str = "",
    without: Collection[str] = (),
) -> Pod | None:
    """The pod with the least predicted wait, then the fewest of our own requests; None if none can be asked.

    in_flight: URL → requests of this router that it is answering. without: URLs that have just failed.
    """
    able = [
        pod
        for pod in pods
        if pod.state == "ready"
        and now_ms - pod.beat_ms < settings.HEARTBEAT_LAPSE_MS
        and pod.url not in without
        and usable(pod.url)
    ]
    rate = common_rate(able)
    return min(
        [pod for pod in able if model in pod.models] or able,
        key=lambda pod: (predicted_ttft_s(pod, 0, rate), in_flight.get(pod.url, 0), pod.open_streams, pod.name),
        default=None,
    )


def usable(url: str) -> bool:
    """Whether a pod's URL is the base of an HTTP server and nothing else."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    bare = not (parts.query or parts.fragment or parts.username or parts.path.strip("/"))
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0 and bare


class PodDirectory:
    """Heartbeats, read again when they are needed and older than FRESH_S."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._pods: list[Pod] = []
        self._now_ms = 0
        self._read_s = float("-inf")
        self.in_flight: Counter[str] = Counter()

    async def choose(self, model: str, without: Collection[str] = ()) -> Pod | None:
        """Raises Unreachable or RedisRefused."""
        if time.monotonic() - self._read_s > FRESH_S:
            beats, self._now_ms = await self._streams.heartbeats()
            found = (parse_heartbeat(name, beat) for name, beat in beats.items())
            self._pods = [pod for pod in found if pod is not None]
            self._read_s = time.monotonic()
        return choose_for_request(self._pods, self._now_ms, self.in_flight, model=model, without=without)
