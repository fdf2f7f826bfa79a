"""What the operator knows of the cluster, from its watches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from stream2llm_operator.desired.naming import PROFILE_KEY_LABEL
from stream2llm_operator.queueing import Key

Body = Mapping[str, Any]


class View(Protocol):
    """Objects as they were last seen. Nothing here asks the API server."""

    def resource(self, key: Key) -> Body | None:
        """The StreamingPrefill."""

    def resources(self, namespace: str) -> Iterable[Body]:
        """All StreamingPrefills of a namespace."""

    def child(self, kind: str, namespace: str, name: str) -> Body | None:
        """An object that the operator has made."""

    def pods(self, namespace: str, name: str, component: str) -> list[Body]:
        """Pods of one resource: component `pod`, `router`."""

    def profile_pods(self, namespace: str, key_hash: str) -> list[Body]:
        """Pods that measure a profile."""

    def profile_jobs(self, namespace: str) -> list[Body]:
        """All Jobs that measure profiles."""

    def nodes(self) -> Iterable[Body] | None:
        """All nodes, or None where the operator may not read them."""


class IndexView:
    """The view over kopf's indices, which are complete before the first event is handled."""

    def __init__(self, indices: Mapping[str, Mapping[Any, Iterable[Body]]], *, reads_nodes: bool) -> None:
        self._indices, self._reads_nodes = indices, reads_nodes

    def resource(self, key: Key) -> Body | None:
        return _one(self._indices["resources"], key)

    def resources(self, namespace: str) -> list[Body]:
        index = self._indices["resources"]
        return [body for key in list(index) if key[0] == namespace for body in index[key]]

    def child(self, kind: str, namespace: str, name: str) -> Body | None:
        return _one(self._indices["children"], (kind, namespace, name))

    def pods(self, namespace: str, name: str, component: str) -> list[Body]:
        return list(self._indices["pods"].get((namespace, name, component), ()))

    def profile_pods(self, namespace: str, key_hash: str) -> list[Body]:
        index = self._indices["pods"]
        return [
            body
            for key in list(index)
            if key[0] == namespace and key[2] == "profile"
            for body in index[key]
            if body["metadata"]["labels"].get(PROFILE_KEY_LABEL) == key_hash
        ]

    def profile_jobs(self, namespace: str) -> list[Body]:
        index = self._indices["children"]
        return [body for key in list(index) if key[:2] == ("Job", namespace) for body in index[key]]

    def nodes(self) -> list[Body] | None:
        if not self._reads_nodes:
            return None
        index = self._indices["nodes"]
        return [body for key in list(index) for body in index[key]]


def _one(index: Mapping[Any, Iterable[Body]], key: Any) -> Body | None:
    return next(iter(index.get(key, ())), None)
