"""Pods that serve streams whose prompts still arrive, coarse enough for a day: rates instead of steps.

Each pod computes so many prompt tokens a second, oldest stream first, and holds so many tokens of KV cache; where a
stream needs room, the youngest other one loses its computed tokens, to be computed again. Streams stay on their pod.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stream2llm_bench.autoscale.signals import PodSample

STEP_S = 1.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """One pod. start_s: from asked for to ready."""

    prefill_tokens_per_s: float = 5_000.0
    kv_tokens: int = 100_000
    max_open_streams: int = 128
    start_s: float = 120.0


@dataclass(slots=True)
class Stream:
    """One question: `tokens` of context arrive evenly over `retrieval_s`, and the answer takes `answer_s`."""

    start_s: float
    tokens: int
    retrieval_s: float
    answer_s: float
    computed: float = 0.0
    first_token_s: float | None = None

    @property
    def finish_s(self) -> float:
        """When all of its context has come."""
        return self.start_s + self.retrieval_s

    def arrived(self, now_s: float) -> float:
        if now_s >= self.finish_s:
            return self.tokens
        return self.tokens * max(now_s - self.start_s, 0.0) / self.retrieval_s


@dataclass(slots=True)
class Pod:
    """One pod; ready from `ready_s` on."""

    name: str
    hardware: Hardware
    ready_s: float
    draining: bool = False
    streams: list[Stream] = field(default_factory=list)
    """Oldest first."""
    waste_s: float = 0.0
    preemptions: int = 0

    @property
    def held_tokens(self) -> float:
        return sum(stream.computed for stream in self.streams)

    def backlog_tokens(self, now_s: float) -> float:
        return sum(stream.arrived(now_s) - stream.computed for stream in self.streams if stream.first_token_s is None)

    def sample(self, now_s: float) -> PodSample:
        return PodSample(
            self.name,
            self.ready_s,
            self.draining,
            self.waste_s,
            self.preemptions,
            self.backlog_tokens(now_s) / self.hardware.prefill_tokens_per_s,
            self.held_tokens / self.hardware.kv_tokens,
            len(self.streams),
        )

    def step(self, now_s: float) -> list[Stream]:
        """Serve from `now_s` for one step. Returns the streams that got their first token in it."""
        rate, answered = self.hardware.prefill_tokens_per_s, []
        end_s, left = now_s + STEP_S, rate * STEP_S
        self.streams = [
            stream
            for stream in self.streams
            if stream.first_token_s is None or stream.first_token_s + stream.answer_s > now_s
        ]
        held = self.held_tokens
        for position, stream in enumerate(self.streams):
            if left <= 0:
                break
            if stream.first_token_s is not None:
                continue
            wanted = min(stream.arrived(end_s) - stream.computed, left)
            if held + wanted > self.hardware.kv_tokens:
                held = self._make_room(position, held, wanted)
                wanted = min(wanted, self.hardware.kv_tokens - held)
            if wanted > 0:
                stream.computed += wanted
                held += wanted
                left -= wanted
            if end_s >= stream.finish_s and stream.computed >= stream.tokens - 1e-6:
                # Within the step, as far as the work before it reached; never before its last token had come.
                stream.first_token_s = max(end_s - left / rate, stream.finish_s)
                answered.append(stream)
        return answered

    def _make_room(self, position: int, held: float, wanted: float) -> float:
        """Take what younger streams hold, the youngest first. Returns what is held then."""
        for victim in reversed(self.streams[position + 1 :]):
            if held + wanted <= self.hardware.kv_tokens:
                break
            if victim.computed > 0 and victim.first_token_s is None:
                self.waste_s += victim.computed / self.hardware.prefill_tokens_per_s
                self.preemptions += 1
                held -= victim.computed
                victim.computed = 0.0
        return held


class Fleet:
    """The pods of a pool, and the streams that wait for one with room."""

    def __init__(self, hardware: Hardware, replicas: int) -> None:
        self._hardware = hardware
        self._made = 0
        self.pods: list[Pod] = []
        self.waiting: list[Stream] = []
        self.scale(0.0, replicas)
        for pod in self.pods:
            pod.ready_s = 0.0

    def scale(self, now_s: float, replicas: int) -> None:
        """Start pods, or drain the ones with the fewest streams. A pod that drains goes when it is empty."""
        active = [pod for pod in self.pods if not pod.draining]
        for _ in range(replicas - len(active)):
            self._made += 1
            self.pods.append(Pod(f"pod-{self._made}", self._hardware, now_s + self._hardware.start_s))
        # Those that are not ready yet serve nobody.
        active.sort(key=lambda pod: (pod.ready_s <= now_s, len(pod.streams)))
        for pod in active[: max(len(active) - replicas, 0)]:
            pod.draining = True

    def step(self, now_s: float, arriving: Sequence[Stream]) -> list[Stream]:
        """One step of all pods. Returns the streams that got their first token in it."""
        self.pods = [pod for pod in self.pods if not pod.draining or pod.streams]
        self.waiting.extend(arriving)
        self._place(now_s)
        answered = []
        for pod in self.pods:
            if pod.ready_s <= now_s:
                answered += pod.step(now_s)
        return answered

    def ready(self, now_s: float) -> list[Pod]:
        """Pods that are scraped: ready, or draining."""
        return [pod for pod in self.pods if pod.ready_s <= now_s]

    def _place(self, now_s: float) -> None:
        """Each stream to the pod that would be first to have computed it, as routers predict it."""
        if not self.waiting:
            return
        able = [pod for pod in self.pods if pod.ready_s <= now_s and not pod.draining]
        loads = {pod.name: (pod.backlog_tokens(now_s), pod.held_tokens) for pod in able}
        while self.waiting:
            able = [pod for pod in able if len(pod.streams) < pod.hardware.max_open_streams]
            if not able:
                return
            stream = self.waiting.pop(0)

            def predicted(pod: Pod) -> float:
                backlog, held = loads[pod.name]
                return (backlog + 64 * len(pod.streams) + 1) / max(1 - held / pod.hardware.kv_tokens, 0.02)

            pod = min(able, key=predicted)
            pod.streams.append(stream)
            backlog, held = loads[pod.name]
            loads[pod.name] = (backlog + stream.tokens, held)
