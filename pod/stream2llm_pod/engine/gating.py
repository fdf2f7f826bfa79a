"""A waiting queue of which vLLM's scheduling loop sees only what the plan granted."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Any

from vllm.v1.core.sched.request_queue import RequestQueue


class GatedQueue(RequestQueue):
    """vLLM's first-come-first-served queue with a gate.

    `peek`, `pop` and truth see the exposed requests only, in the order given; length, iteration and removal see all.
    So a step touches as many requests as it grants, however many wait, and vLLM's loop executes the plan unchanged.
    With `expose(None)` it is an ordinary FIFO queue.
    """

    def __init__(self) -> None:
        self._all: OrderedDict[str, Any] = OrderedDict()
        self._exposed: deque[Any] | None = deque()

    def expose(self, requests: Iterable[Any] | None) -> None:
        self._exposed = None if requests is None else deque(requests)

    def add_request(self, request: Any) -> None:
        self._all[request.request_id] = request

    def prepend_request(self, request: Any) -> None:
        self._all[request.request_id] = request
        self._all.move_to_end(request.request_id, last=False)

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        for request in requests:
            self.prepend_request(request)

    def peek_request(self) -> Any:
        if self._exposed is not None:
            return self._exposed[0]
        return next(iter(self._all.values()))

    def pop_request(self) -> Any:
        if self._exposed is not None:
            request = self._exposed.popleft()
            del self._all[request.request_id]
            return request
        return self._all.popitem(last=False)[1]

    def remove_request(self, request: Any) -> None:
        self.remove_requests((request,))

    def remove_requests(self, requests: Iterable[Any]) -> None:
        for request in requests:
            if self._all.pop(request.request_id, None) is not None and self._exposed and request in self._exposed:
                self._exposed.remove(request)

    def __bool__(self) -> bool:
        return bool(self._all if self._exposed is None else self._exposed)

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, request: object) -> bool:
        return getattr(request, "request_id", None) in self._all

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all.values())
