"""Policies that only the bench has: two that any comparison must find bad."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from zlib import crc32

from stream2llm_pod.scheduling.policies import POLICIES, Policy
from stream2llm_pod.scheduling.views import RankKey, StreamView

RANDOM = "random"
REVERSE = "reverse"


class Random(Policy):
    """No order at all, another one with each chunk."""

    name = RANDOM

    def key(self, view: StreamView, now_s: float) -> RankKey:
        return (crc32(f"{view.req_id} {view.last_chunk_s}".encode()), view.arrival_s, view.req_id)


class Reverse(Policy):
    """The opposite of what helps: prompts that still grow before whole ones, the longest remaining first."""

    name = REVERSE

    def key(self, view: StreamView, now_s: float) -> RankKey:
        return (int(not view.open), -view.remaining_prefill_tokens, -view.arrival_s, view.req_id)


PEERS = {policy.name: policy for policy in (Random, Reverse)}


@contextmanager
def registered() -> Iterator[None]:
    """While in it, the engine knows the peers beside the pod's policies."""
    POLICIES.update({name: lambda _, made=made: made() for name, made in PEERS.items()})  # type: ignore[misc]
    try:
        yield
    finally:
        for name in PEERS:
            del POLICIES[name]
