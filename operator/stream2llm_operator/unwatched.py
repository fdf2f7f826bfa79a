"""Children whose kinds other projects define. Their CRDs may be absent, and a watch needs them to be there, so these
are read in each pass instead."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from stream2llm_operator.comparing import Applied, digest, fingerprint, identity, is_owned_by
from stream2llm_operator.desired.monitoring import POD_MONITOR, pod_monitor
from stream2llm_operator.desired.scaling import HPA, HPA_PREFIX, SCALED_OBJECT, backend, scaler
from stream2llm_operator.kube import ApiError, KubeApi
from stream2llm_operator.pool import OperatorSettings, Pool
from stream2llm_operator.status.diagnosing import Finding
from stream2llm_operator.status.scaling import Scaler

logger = logging.getLogger(__name__)

ABSENT_FOR_S = 300.0
"""How long a kind that the API server does not know is taken as absent."""
_NEEDS = {SCALED_OBJECT: "KEDA", POD_MONITOR: "the Prometheus operator"}


class UnwatchedChildren:
    """The autoscaler and the PodMonitor of each resource."""

    def __init__(
        self, api: KubeApi, settings: OperatorSettings, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._api, self._settings, self._monotonic = api, settings, monotonic
        self._applied: dict[tuple[str, str, str], Applied] = {}
        self._cleared: set[tuple[str, str | None]] = set()
        """(uid, kind that scales): no other kind of scaler is left."""
        self._absent_until_s: dict[str, float] = {}

    def forget(self, namespace: str, name: str) -> None:
        """The resource is gone, and the garbage collector removes what it owned."""
        for kind in (SCALED_OBJECT, HPA, POD_MONITOR):
            self._applied.pop((kind, namespace, name), None)

    async def monitor(self, pool: Pool) -> None:
        """Make Prometheus read the pool, where that is asked for. Raises ApiError where the API server failed."""
        wanted = pod_monitor(pool, self._settings)
        if wanted is not None and (trouble := await self._keep(pool, wanted)) is not None:
            logger.warning("no metrics of %s/%s: %s", pool.namespace, pool.name, trouble.message)

    async def scale(self, pool: Pool, *, may_write: bool) -> Scaler:
        """Make the object that scales, remove one of another kind, and read what they say.

        may_write: False where the spec is refused, so that what runs goes on. Raises ApiError where the API server
        failed.
        """
        kind = backend(pool)
        if may_write:
            await self._clear(pool, kind)
        wanted = scaler(pool)
        if wanted is None or kind is None:
            return Scaler()
        trouble = await self._keep(pool, wanted) if may_write else None
        if trouble is not None:
            return Scaler(trouble=trouble)
        if kind == HPA:
            return Scaler(autoscaler=await self._api.get(HPA, pool.namespace, pool.name))
        return Scaler(
            scaled_object=await self._api.get(SCALED_OBJECT, pool.namespace, pool.name),
            autoscaler=await self._api.get(HPA, pool.namespace, f"{HPA_PREFIX}{pool.name}"),
        )

    async def _clear(self, pool: Pool, kind: str | None) -> None:
        """Two scalers would fight. Which one there was is not remembered, so it is looked up, once per change."""
        if (pool.uid, kind) in self._cleared:
            return
        for other in (SCALED_OBJECT, HPA):
            if other == kind:
                continue
            found = await self._api.get(other, pool.namespace, pool.name)
            if found is not None and is_owned_by(found, pool.uid):
                await self._api.delete(other, pool.namespace, pool.name, found["metadata"]["uid"])
                logger.info("removed %s %s/%s", other, pool.namespace, pool.name)
            self._applied.pop((other, pool.namespace, pool.name), None)
        self._cleared = {each for each in self._cleared if each[0] != pool.uid} | {(pool.uid, kind)}

    async def _keep(self, pool: Pool, manifest: Mapping[str, Any]) -> Finding | None:
        """Apply what differs; why that cannot be, where it cannot."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if self._absent_until_s.get(kind, 0.0) > self._monotonic():
            return _absent(kind)
        found = await self._api.get(kind, pool.namespace, name)
        if found is not None and not is_owned_by(found, pool.uid):
            return Finding("NameConflict", f"{kind} {name} belongs to somebody else")
        known = self._applied.get(identity(manifest))
        if found is not None and known == Applied(digest(manifest), fingerprint(found)):
            return None
        try:
            live = await self._api.apply(manifest)
        except ApiError as error:
            if error.status == 404:
                self._absent_until_s[kind] = self._monotonic() + ABSENT_FOR_S
                return _absent(kind)
            if error.is_refusal:
                return Finding("ScalerRejected", f"{kind} {name}: {error.message[:800]}")
            raise
        logger.info("applied %s %s/%s", kind, pool.namespace, name)
        self._applied[identity(manifest)] = Applied(digest(manifest), fingerprint(live))
        return None


def _absent(kind: str) -> Finding:
    return Finding("ScalerMissing", f"this cluster has no {kind}: install {_NEEDS.get(kind, kind)}")
