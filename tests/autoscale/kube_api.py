"""The Kubernetes API in plain HTTP, for what is asked several times a second."""

from __future__ import annotations

import ssl
from typing import Any

import httpx
from control_plane import ControlPlane


class KubeApi:
    """As the administrator. Every call raises httpx.HTTPError for an answer that is no success."""

    def __init__(self, plane: ControlPlane) -> None:
        context = ssl.create_default_context(cafile=str(plane.work / "ca.crt"))
        headers = {"Authorization": "Bearer admin-token"}
        self._http = httpx.Client(base_url=plane.url, verify=context, headers=headers, trust_env=False, timeout=15)

    def close(self) -> None:
        self._http.close()

    def get(self, path: str) -> dict[str, Any]:
        return self._asked("GET", path)

    def find(self, path: str) -> dict[str, Any] | None:
        """None where there is no such object."""
        answer = self._http.get(path)
        return None if answer.status_code == 404 else _checked(answer)

    def create(self, path: str, body: Any) -> dict[str, Any]:
        return self._asked("POST", path, json=body)

    def patch(self, path: str, body: Any) -> dict[str, Any]:
        """A merge patch."""
        return self._asked("PATCH", path, json=body, headers={"Content-Type": "application/merge-patch+json"})

    def delete(self, path: str, **options: Any) -> None:
        self._asked("DELETE", path, json={"apiVersion": "v1", "kind": "DeleteOptions", **options})

    def _asked(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        return _checked(self._http.request(method, path, **more))


def _checked(answer: httpx.Response) -> dict[str, Any]:
    if not answer.is_success:
        raise httpx.HTTPStatusError(f"{answer.request.url}: {answer.text}", request=answer.request, response=answer)
    body: dict[str, Any] = answer.json()
    return body
