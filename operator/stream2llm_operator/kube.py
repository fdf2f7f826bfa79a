"""The Kubernetes API as the operator uses it: few verbs on plain objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from kubernetes.aio.client import ApiClient

from stream2llm_operator.api.crd import API_VERSION, GROUP, KIND, PLURAL, VERSION
from stream2llm_operator.desired.naming import MANAGER

REQUEST_TIMEOUT_S = 30.0
_PLACES = {
    KIND: (f"apis/{GROUP}/{VERSION}", PLURAL),
    "ConfigMap": ("api/v1", "configmaps"),
    "Deployment": ("apis/apps/v1", "deployments"),
    "Event": ("api/v1", "events"),
    "HorizontalPodAutoscaler": ("apis/autoscaling/v2", "horizontalpodautoscalers"),
    "Job": ("apis/batch/v1", "jobs"),
    "Lease": ("apis/coordination.k8s.io/v1", "leases"),
    "Pod": ("api/v1", "pods"),
    "NetworkPolicy": ("apis/networking.k8s.io/v1", "networkpolicies"),
    "PodMonitor": ("apis/monitoring.coreos.com/v1", "podmonitors"),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets"),
    "ScaledObject": ("apis/keda.sh/v1alpha1", "scaledobjects"),
    "Service": ("api/v1", "services"),
    "ServiceAccount": ("api/v1", "serviceaccounts"),
}


class ApiError(Exception):
    """An answer of the API server that is no success."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status, self.reason, self.message = status, reason, message

    @property
    def is_refusal(self) -> bool:
        """Whether the object, or what a quota or policy says of it, is at fault: trying again at once is no use."""
        if self.status == 500:
            # Server-side apply answers so where an object does not fit its schema.
            return self.message.startswith(("failed to create typed patch object", "failed to convert new object"))
        return self.status in (400, 403, 422)


class KubeApi:
    """`apply` and `apply_status` are server-side applies under our own field manager: others' fields stay theirs."""

    def __init__(self, client: ApiClient, on_write: Callable[[], None] = lambda: None) -> None:
        """on_write: called for each request that may change something; not for dry runs."""
        self._client, self._on_write = client, on_write

    async def apply(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Returns the object as it is then. Raises ApiError."""
        metadata = manifest["metadata"]
        query = {"fieldManager": MANAGER, "force": "true"}
        if dry_run:
            query["dryRun"] = "All"
        path = _path(manifest["kind"], metadata["namespace"], metadata["name"])
        return await self._request("PATCH", path, manifest, query, content="application/apply-patch+yaml")

    async def apply_status(self, namespace: str, name: str, uid: str, status: Mapping[str, Any]) -> None:
        """Raises ApiError; 409 if the resource is another one by now."""
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "status": status,
        }
        query = {"fieldManager": MANAGER, "force": "true"}
        path = f"{_path(KIND, namespace, name)}/status"
        await self._request("PATCH", path, body, query, content="application/apply-patch+yaml")

    async def merge(self, patch: Mapping[str, Any]) -> None:
        """Changes an object that is there and somebody else's. Raises ApiError; 404 where it is not."""
        metadata = patch["metadata"]
        path = _path(patch["kind"], metadata["namespace"], metadata["name"])
        query = {"fieldManager": MANAGER}
        await self._request("PATCH", path, patch, query, content="application/merge-patch+json")

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """The object, or None. Raises ApiError."""
        try:
            return await self._request("GET", _path(kind, namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def versions(self, namespace: str) -> dict[tuple[str, str], str]:
        """Resource versions of all StreamingPrefills, of one namespace or, if it is empty, of all. Raises ApiError."""
        group, plural = _PLACES[KIND]
        path = f"/{group}/namespaces/{namespace}/{plural}" if namespace else f"/{group}/{plural}"
        accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
        items = (await self._request("GET", path, accept=accept)).get("items") or ()
        found = [item["metadata"] for item in items]
        return {(each["namespace"], each["name"]): each["resourceVersion"] for each in found}

    async def create(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Raises ApiError; 409 if there is one already."""
        query = {"fieldManager": MANAGER}
        return await self._request("POST", _path(manifest["kind"], manifest["metadata"]["namespace"]), manifest, query)

    async def replace(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Raises ApiError; 409 if it has changed since it was read."""
        metadata = manifest["metadata"]
        path = _path(manifest["kind"], metadata["namespace"], metadata["name"])
        return await self._request("PUT", path, manifest, {"fieldManager": MANAGER})

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """Exactly this object, with what it owns; one that is gone already is no error. Raises ApiError."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            await self._request("DELETE", _path(kind, namespace, name), body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
        accept: str = "application/json",
    ) -> dict[str, Any]:
        if method != "GET" and "dryRun" not in (query or {}):
            self._on_write()
        request = await self._client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params={"Accept": accept, "Content-Type": content},
            body=dict(body) if body is not None else None,
            auth_settings=["BearerToken"],
        )
        response = await self._client.call_api(*request, _request_timeout=REQUEST_TIMEOUT_S)
        text: bytes = await response.read()  # type: ignore[no-untyped-call]
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {"message": text.decode("utf-8", "replace")[:500]}
        if not 200 <= int(response.status) < 300:
            raise ApiError(response.status, str(answer.get("reason", "")), str(answer.get("message", "")))
        return dict(answer)


def _path(kind: str, namespace: str, name: str = "") -> str:
    group, plural = _PLACES[kind]
    return f"/{group}/namespaces/{namespace}/{plural}{f'/{name}' if name else ''}"
