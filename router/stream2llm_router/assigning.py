"""Which pod gets a stream. Pure: heartbeats, the time and the stream's needs in, a pod out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from stream2llm import settings
from stream2llm.heartbeats import Pod

DEFAULT_PREFILL_TOKENS_PER_S = 1000.0
"""Assumed while no pod has measured anything."""
OPEN_STREAM_TOKENS = 64
"""What an open stream counts beside its backlog: it will bring more, and while it answers it takes from each step."""
LEAST_FREE_KV = 0.05
"""A pod whose KV cache is full is taken to be this many times slower, as it must preempt and compute again."""
AFFINITY_SLACK_S = 0.05
"""Pods whose predictions differ by less are equal, and the one that may have the prompt's beginning cached wins."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What is known of a stream before a pod has it.

    model: what the open asks for by name; fingerprint: that of the model which has answered in part, so no other will
    do; affinity: a digest of the prompt's beginning, '' if it is too short to matter; tokens: roughly the prompt's.
    """

    model: str = ""
    fingerprint: str = ""
    affinity: str = ""
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Given:
    """What a pod has been given since its last heartbeat."""

    streams: int = 0
    tokens: int = 0


NOTHING = Given()


def common_rate(pods: Iterable[Pod]) -> float:
    """Prompt tokens per second that a pod of this pool computes: the most that any of them has shown.

    They are of one kind, and what one has measured is at most what it can do: a pod with little to do shows little, one
    that has just started nothing. Taken for its speed, that would keep streams from the very pods that are free. A pod
    that is slower than its like has the longer backlog.
    """
    return max((pod.prefill_tokens_per_s or 0.0 for pod in pods), default=0.0) or DEFAULT_PREFILL_TOKENS_PER_S


def predicted_ttft_s(pod: Pod, tokens: int, rate: float, given: Given = NOTHING) -> float:
    """Seconds until a prompt of `tokens` tokens, given to this pod now, would have its first token.

    rate: `common_rate` of the pool.
    """
    streams = pod.open_streams + given.streams
    todo_tokens = pod.backlog_tokens + given.tokens + tokens + OPEN_STREAM_TOKENS * streams
    return todo_tokens / rate / max(1.0 - pod.kv_usage, LEAST_FREE_KV)


def able(pod: Pod, now_ms: int, given: Given = NOTHING, lapse_ms: int = settings.HEARTBEAT_LAPSE_MS) -> bool:
    """Whether a pod takes streams at all: silent, draining, full and other-protocol pods get nothing."""
    return (
        pod.protocol == settings.PROTOCOL_VERSION
        and pod.state == "ready"
        and now_ms - pod.beat_ms < lapse_ms
        and pod.open_streams + given.streams < pod.max_open_streams
    )


class Lack(StrEnum):
    """Why no pod can take a stream."""

    NO_POD = "no_pod"
    """No pod has sent a heartbeat lately."""
    OTHER_PROTOCOL = "other_protocol"
    """All that are there speak another version of the protocol."""
    LEAVING = "leaving"
    """All that are there take no new streams, as they leave."""
    NO_ROOM = "no_room"
    """All that would do have as many open streams as they take, or each has a stream on trial."""
    OTHER_MODEL = "other_model"
    """The stream has sent tokens, and no pod with their model takes streams."""

    def told(self) -> str:
        """As a clause: what there is instead of a pod."""
        return _TOLD[self]


_TOLD = {
    Lack.NO_POD: "no pod is there",
    Lack.OTHER_PROTOCOL: "all pods that are there speak another version of the protocol",
    Lack.LEAVING: "all pods that are there are leaving",
    Lack.NO_ROOM: "no pod has room",
    Lack.OTHER_MODEL: "no pod is there with the model that has begun to answer",
}


def lack_of(pods: Iterable[Pod], now_ms: int, needs: Needs, lapse_ms: int = settings.HEARTBEAT_LAPSE_MS) -> Lack:
    """Why `choose_pod` found nobody, or the pod that it found did not take the stream."""
    there = [pod for pod in pods if now_ms - pod.beat_ms < lapse_ms]
    if not there:
        return Lack.NO_POD
    understood = [pod for pod in there if pod.protocol == settings.PROTOCOL_VERSION]
    if not understood:
        return Lack.OTHER_PROTOCOL
    ready = [pod for pod in understood if pod.state == "ready"]
    if not ready:
        return Lack.LEAVING
    return Lack.NO_ROOM if any(needs.fingerprint in ("", pod.fingerprint) for pod in ready) else Lack.OTHER_MODEL


def choose_pod(
    pods: Iterable[Pod],
    now_ms: int,
    needs: Needs,
    given: Mapping[str, Given],
    lapse_ms: int = settings.HEARTBEAT_LAPSE_MS,
) -> Pod | None:
    """The pod with the least predicted time to first token, or None if nobody can take the stream.

    given: by incarnation, what went there since its last heartbeat. Of pods that are as good as equal the affinity
    picks one, always the same for the same beginning of a prompt; without it go the fewest open streams, the lowest KV
    use, the name. Pods that have the model come first, and if none has it any pod may say so.
    """

    def got(pod: Pod) -> Given:
        return given.get(pod.incarnation, NOTHING)

    def predicted_s(pod: Pod) -> float:
        return predicted_ttft_s(pod, needs.tokens, rate, got(pod))

    fit = [pod for pod in pods if able(pod, now_ms, got(pod), lapse_ms) and needs.fingerprint in ("", pod.fingerprint)]
    fit = [pod for pod in fit if needs.model in pod.models] or fit
    if not fit:
        return None
    rate = common_rate(fit)
    if needs.affinity:
        best_s = min(map(predicted_s, fit))
        equal = [pod for pod in fit if predicted_s(pod) - best_s < AFFINITY_SLACK_S]
        return max(equal, key=lambda pod: (_score(needs.affinity, pod.name), pod.name))
    return min(fit, key=lambda pod: (predicted_s(pod), pod.open_streams + got(pod).streams, pod.kv_usage, pod.name))


def _score(affinity: str, name: str) -> bytes:
    """Highest-random-weight hashing: a pod that comes or goes moves only the prompts that it wins or had."""
    return hashlib.blake2b(f"{affinity} {name}".encode(), digest_size=8).digest()
