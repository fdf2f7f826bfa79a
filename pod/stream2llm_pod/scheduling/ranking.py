"""Keeps requests sorted by rank between steps, so that a step re-sorts only what changed."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from stream2llm_pod.scheduling.views import RankKey


class RankIndex:
    """Request ids in rank order. Changing one costs a binary search and one memory move."""

    def __init__(self) -> None:
        self._key_of: dict[str, RankKey] = {}
        self._keys: list[RankKey] = []

    def put(self, req_id: str, key: RankKey) -> None:
        """Insert `req_id`, or move it. `key` must end with `req_id`."""
        old = self._key_of.get(req_id)
        if old == key:
            return
        if old is not None:
            self._delete(old)
        self._key_of[req_id] = key
        insort(self._keys, key)

    def discard(self, req_id: str) -> None:
        old = self._key_of.pop(req_id, None)
        if old is not None:
            self._delete(old)

    def _delete(self, key: RankKey) -> None:
        del self._keys[bisect_left(self._keys, key)]

    def key(self, req_id: str) -> RankKey:
        return self._key_of[req_id]

    def __contains__(self, req_id: object) -> bool:
        return req_id in self._key_of

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[RankKey]:
        """Highest rank first."""
        return iter(self._keys)

    def __reversed__(self) -> Iterator[RankKey]:
        return reversed(self._keys)
