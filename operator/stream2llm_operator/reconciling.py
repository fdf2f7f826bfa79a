"""One pass over one resource: read what is there, decide (pure), write what differs.

Level-triggered: a pass knows nothing of the event that asked for it, may be repeated, cut short anywhere, or run late.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError

from stream2llm_operator.api.crd import API_VERSION, KIND
from stream2llm_operator.asking import Routers
from stream2llm_operator.comparing import Applied, digest, fingerprint, identity, is_owned_by
from stream2llm_operator.desired import profiling
from stream2llm_operator.desired.children import children
from stream2llm_operator.desired.engine import engine_version
from stream2llm_operator.desired.naming import (
    MANAGER,
    PROFILE_KEY_LABEL,
    profile_config_map_name,
    router_name,
)
from stream2llm_operator.desired.profiling import JOB_DIGEST_ANNOTATION, ProfileRequest, profile_request
from stream2llm_operator.desired.refusing import refusals
from stream2llm_operator.desired.serving import needs_profile
from stream2llm_operator.discovering import discover, is_shared, missing, products
from stream2llm_operator.kube import ApiError, KubeApi
from stream2llm_operator.pool import OperatorSettings, Pool
from stream2llm_operator.profiles import ProfileDecision, ProfileFacts, decide, find_bundled
from stream2llm_operator.queueing import Key
from stream2llm_operator.shrinking import COST_ANNOTATION, due_costs, shrinks
from stream2llm_operator.status.deriving import Verdict, Workload, conditions, status, verdicts
from stream2llm_operator.status.diagnosing import Finding, GPUs, unready_addresses
from stream2llm_operator.status.reasons import READY, REASONS, ROUTER_READY, STALLED
from stream2llm_operator.status.scaling import scaling_status, scaling_verdict
from stream2llm_operator.unwatched import UnwatchedChildren
from stream2llm_operator.viewing import Body, View

logger = logging.getLogger(__name__)

STALLED_RETRY_S = 60.0
"""What stands in a resource's way may be in an object that is not watched, such as a ConfigMap of the user's."""
REFERENCE_RETRY_S = 15.0
SCALER_RETRY_S = 30.0
ROUTER_RETRY_S = 10.0
MOST_ROUTERS_ASKED = 3
JOB_SEEN_WITHIN = timedelta(seconds=30)
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class Reconciler:
    """Holds what was applied to spare repeated writes; losing it costs one write per child that changes nothing."""

    def __init__(
        self,
        api: KubeApi,
        view: View,
        settings: OperatorSettings,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        routers: Routers | None = None,
    ) -> None:
        self._api, self._view, self._settings, self._now = api, view, settings, now
        self._routers = routers or Routers()
        self._applied: dict[tuple[str, str, str], Applied] = {}
        self._unwatched = UnwatchedChildren(api, settings)
        self._starting: dict[tuple[str, str], datetime] = {}
        """When the Job for a namespace and a profile was made, until a watch has shown it."""

    async def reconcile(self, key: Key) -> float | None:
        """Returns in how many seconds to look again though nothing has happened; None for not before the resync.

        Raises ApiError and OSError where the API server could not be used: try again later.
        """
        body = self._view.resource(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            self._forget(key)
            return None
        try:
            pool = Pool.read(body)
        except ValidationError as error:
            await self._report_unreadable(body, error)
            return STALLED_RETRY_S
        return await self._reconcile(pool, body)

    async def _reconcile(self, pool: Pool, body: Body) -> float | None:
        previous = body.get("status") or {}
        product, unknown = self._gpu_product(pool, previous)
        request = profile_request(pool, self._settings, product)
        if request is None and unknown is None:
            unknown = Finding("EngineVersionUnknown", "the image's tag names no version of vLLM")
        decision = await self._decide_profile(pool, request, unknown, product)
        stalled: Finding | None = None
        if found := refusals(pool.spec):
            # What runs goes on running as it is: a mistake in an edit must not take the pool down.
            stalled = Finding(found[0].reason, "; ".join(refusal.message for refusal in found))
        else:
            stalled = await self._apply_children(pool, decision, product)
            if stalled is None:
                stalled = await self._act_on_profile(pool, request, decision, product)
            if stalled is None and unknown is None:
                await self._clear_measurements(pool, request)
        scaler = await self._unwatched.scale(pool, may_write=stalled is None)
        if stalled is None:
            await self._unwatched.monitor(pool)
        pods = self._workload(pool, pool.name, "pod")
        routers = self._workload(pool, router_name(pool), "router")
        redis = await self._redis(pool, routers)
        result = verdicts(
            stalled=stalled,
            profiled=decision.verdict,
            pods=pods,
            routers=routers,
            redis=redis,
            scaling=scaling_verdict(pool, scaler),
            waiting_for_profile=not decision.may_start_pods,
            gpus=self._gpus(pool, product),
        )
        wanted = status(
            pool,
            previous,
            result,
            now=_rfc3339(self._now()),
            pods=pods,
            engine_version=engine_version(pool, self._settings),
            gpu_product=product,
            profile=decision.in_use,
            autoscaling=scaling_status(pool, previous, scaler, _rfc3339(self._now())),
        )
        await self._write_status(pool, body, wanted, result[READY])
        if stalled is not None:
            return STALLED_RETRY_S
        if pool.spec.cost_profile.config_map_ref is not None:
            return REFERENCE_RETRY_S
        if result[ROUTER_READY].holds is False:
            return ROUTER_RETRY_S
        return SCALER_RETRY_S if pool.spec.autoscaling is not None else None

    # ------------------------------------------------------------------ facts
    def _gpu_product(self, pool: Pool, previous: Mapping[str, Any]) -> tuple[str | None, Finding | None]:
        """The node label's value, found once and then kept: nodes that come later must not move a running pool."""
        if pool.spec.engine.device == "CPU":
            return None, None
        wanted = (pool.spec.gpu.product if pool.spec.gpu else None) or previous.get("gpuProduct")
        nodes = self._view.nodes()
        if nodes is None:
            if wanted:
                return wanted, None
            return None, Finding("GPUProductUnknown", "this operator may not read nodes; set gpu.product")
        available = products(nodes, _gpu_resource(pool))
        found = wanted or discover(available)
        if isinstance(found, Finding):
            return None, found
        if is_shared(found):
            return found, Finding("SharedGPU", f"nodes with {found} share their GPUs")
        return found, None

    def _gpus(self, pool: Pool, product: str | None) -> GPUs:
        resource, nodes = _gpu_resource(pool), self._view.nodes()
        if pool.spec.engine.device == "CPU" or product is None or nodes is None:
            return GPUs(resource)
        return GPUs(resource, missing(products(nodes, resource), product, resource))

    async def _decide_profile(
        self, pool: Pool, request: ProfileRequest | None, unknown: Finding | None, product: str | None
    ) -> ProfileDecision:
        facts, job_digest = ProfileFacts(None), ""
        reference = pool.spec.cost_profile.config_map_ref
        if unknown is not None:
            request = None
        if request is not None and needs_profile(pool):
            if pool.spec.cost_profile.bundled is not None:
                bundled = find_bundled(self._settings.bundled, request, engine_version(pool, self._settings))
                facts = replace(self._measuring_facts(pool, request), bundled=bundled)
            elif reference is not None:
                facts = ProfileFacts(await self._api.get("ConfigMap", pool.namespace, reference.name))
            else:
                facts = replace(self._measuring_facts(pool, request), gpus=self._gpus(pool, product))
                made = profiling.job(pool, self._settings, product, request, [pool])
                job_digest = made["metadata"]["annotations"][JOB_DIGEST_ANNOTATION]
        return decide(pool, request, unknown, facts, job_digest=job_digest, now=self._now())

    def _measuring_facts(self, pool: Pool, request: ProfileRequest) -> ProfileFacts:
        jobs = [
            job
            for job in self._view.profile_jobs(pool.namespace)
            if job["metadata"]["labels"].get(PROFILE_KEY_LABEL) == request.hash
            and not job["metadata"].get("deletionTimestamp")
        ]
        job = min(jobs, key=lambda job: str(job["metadata"]["name"]), default=None)
        return ProfileFacts(
            self._view.child("ConfigMap", pool.namespace, profile_config_map_name(request.hash)),
            job,
            [
                pod
                for pod in self._view.profile_pods(pool.namespace, request.hash)
                if job is not None and is_owned_by(pod, job["metadata"]["uid"])
            ],
        )

    def _workload(self, pool: Pool, name: str, component: str) -> Workload:
        deployment = self._view.child("Deployment", pool.namespace, name)
        if deployment is not None and not is_owned_by(deployment, pool.uid):
            deployment = None
        return Workload(deployment, self._view.pods(pool.namespace, pool.name, component))

    async def _redis(self, pool: Pool, routers: Workload) -> Finding | None:
        """What routers that run and are not ready say of Redis. Nobody is asked while one is ready."""
        addresses = unready_addresses(routers.pods, self._now())
        if (routers.deployment or {}).get("status", {}).get("readyReplicas") or not addresses:
            return None
        if not await self._routers.miss_redis(addresses[:MOST_ROUTERS_ASKED]):
            return None
        return Finding("RedisUnreachable", f"routers cannot reach {pool.spec.streams.redis.url}")

    def _owners(self, pool: Pool, request: ProfileRequest) -> list[Pool]:
        """All resources of the namespace that need this profile, this one first."""
        return [pool, *self._others_in_need(pool, request.hash)]

    def _others_in_need(self, pool: Pool, profile_hash: str) -> list[Pool]:
        """Other resources of the namespace that need this profile, by name."""
        others = []
        for body in self._view.resources(pool.namespace):
            if body["metadata"]["uid"] == pool.uid or body["metadata"].get("deletionTimestamp"):
                continue
            try:
                other = Pool.read(body)
            except ValidationError:
                continue
            product, unknown = self._gpu_product(other, body.get("status") or {})
            if unknown is None and needs_profile(other) and other.spec.cost_profile.config_map_ref is None:
                theirs = profile_request(other, self._settings, product)
                if theirs is not None and theirs.hash == profile_hash:
                    others.append(other)
        return sorted(others, key=lambda other: other.name)

    # ----------------------------------------------------------------- writes
    async def _apply_children(self, pool: Pool, decision: ProfileDecision, product: str | None) -> Finding | None:
        wanted = children(
            pool,
            self._settings,
            gpu_product=product,
            profile=decision.mounted,
            start_pods=decision.may_start_pods or self._has_pods(pool),
        )
        due = []
        for manifest in wanted:
            found = self._view.child(manifest["kind"], pool.namespace, manifest["metadata"]["name"])
            if found is not None and not is_owned_by(found, pool.uid):
                return _conflict(manifest)
            if not self._is_applied(manifest, found):
                due.append((manifest, found))
        # All or nothing as far as that can be: a template that the API server refuses leaves everything as it was.
        deployments = [manifest for manifest, _ in due if manifest["kind"] == "Deployment"]
        others = [manifest for manifest, _ in due if manifest["kind"] != "Deployment"]
        checks = [self._refused(manifest) for manifest in deployments]
        checks += [self._foreign(pool, manifest) for manifest, found in due if found is None]
        if (trouble := await first_of(checks)) is not None:
            return trouble
        for manifest, found in due:
            if identity(manifest) == ("Deployment", pool.namespace, pool.name) and shrinks(found, manifest):
                await self._prefer_idle(pool)
        # Deployments last: their pods need the others.
        for manifests in (others, deployments):
            if (trouble := await first_of([self._apply(manifest) for manifest in manifests])) is not None:
                return trouble
        return None

    async def _apply(self, manifest: Mapping[str, Any]) -> Finding | None:
        try:
            live = await self._api.apply(manifest)
        except ApiError as error:
            if error.is_refusal:
                return _rejected(manifest, error)
            raise
        metadata = manifest["metadata"]
        logger.info("applied %s %s/%s", manifest["kind"], metadata["namespace"], metadata["name"])
        self._applied[identity(manifest)] = Applied(digest(manifest), fingerprint(live))
        return None

    async def _prefer_idle(self, pool: Pool) -> None:
        """Just before pods are taken away, Kubernetes is told which ones would leave the fewest streams behind."""
        streams = await self._routers.open_streams(pool)
        if streams is None:
            return
        for name, cost in due_costs(self._view.pods(pool.namespace, pool.name, "pod"), streams).items():
            metadata = {"name": name, "namespace": pool.namespace, "annotations": {COST_ANNOTATION: cost}}
            try:
                await self._api.merge({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
            except ApiError as error:
                # It has gone by itself, or somebody forbids it: the pool gets smaller all the same.
                logger.warning("no deletion cost for pod %s/%s: %s", pool.namespace, name, error)

    def _has_pods(self, pool: Pool) -> bool:
        """Waiting for a profile is for the first start; pods that serve already follow the spec."""
        return self._view.child("Deployment", pool.namespace, pool.name) is not None

    async def _refused(self, manifest: Mapping[str, Any]) -> Finding | None:
        try:
            await self._api.apply(manifest, dry_run=True)
        except ApiError as error:
            if error.is_refusal:
                return _rejected(manifest, error)
            raise
        return None

    async def _foreign(self, pool: Pool, manifest: Mapping[str, Any]) -> Finding | None:
        """Watches see only what carries our label, so before the first apply the API server is asked who is there."""
        there = await self._api.get(manifest["kind"], pool.namespace, manifest["metadata"]["name"])
        if there is None or is_owned_by(there, pool.uid):
            return None
        return _conflict(manifest)

    def _is_applied(self, manifest: Mapping[str, Any], found: Body | None) -> bool:
        applied = self._applied.get(identity(manifest))
        return (
            found is not None
            and applied is not None
            and applied.wanted == digest(manifest)
            and applied.found == fingerprint(found)
        )

    async def _act_on_profile(
        self, pool: Pool, request: ProfileRequest | None, decision: ProfileDecision, product: str | None
    ) -> Finding | None:
        if request is None:
            return None
        job = self._measuring_facts(pool, request).job
        measuring = (pool.namespace, request.hash)
        if job is not None:
            self._starting.pop(measuring, None)
        if decision.start_job:
            if job is not None or self._now() - self._starting.get(measuring, _LONG_AGO) < JOB_SEEN_WITHIN:
                # Another resource's pass has made it since this one looked. Its event asks for this pass again.
                return None
            self._starting[measuring] = self._now()
            manifest = profiling.job(pool, self._settings, product, request, self._owners(pool, request))
            try:
                await self._api.create(manifest)
            except ApiError as error:
                del self._starting[measuring]
                if error.is_refusal:
                    return _rejected(manifest, error)
                if error.status != 409:
                    raise
        elif decision.store is not None:
            rerun_id = (job["metadata"].get("annotations") or {}).get(profiling.RERUN_ANNOTATION, "") if job else ""
            owners = self._owners(pool, request)
            await self._api.apply(profiling.config_map(pool, request, decision.store, owners, rerun_id))
        elif decision.delete_job and job is not None:
            metadata = job["metadata"]
            await self._api.delete("Job", pool.namespace, metadata["name"], metadata["uid"])
        elif decision.mounted is not None and pool.spec.cost_profile.config_map_ref is None:
            await self._share(pool, request)
        return None

    async def _clear_measurements(self, pool: Pool, request: ProfileRequest | None) -> None:
        """A Job that measures what this resource no longer needs, nor any other, gives its GPU back."""
        measures = needs_profile(pool) and pool.spec.cost_profile.measure is not None
        wanted = request.hash if request is not None and measures else None
        for job in self._view.profile_jobs(pool.namespace):
            metadata = job["metadata"]
            key = metadata["labels"].get(PROFILE_KEY_LABEL)
            if key == wanted or metadata.get("deletionTimestamp") or not is_owned_by(job, pool.uid):
                continue
            if not self._others_in_need(pool, key):
                await self._api.delete("Job", pool.namespace, metadata["name"], metadata["uid"])
                logger.info("removed Job %s/%s: nobody needs what it measures", pool.namespace, metadata["name"])

    async def _share(self, pool: Pool, request: ProfileRequest) -> None:
        """A resource that came later owns the profile too, so that it stays when the first one goes."""
        kept = self._view.child("ConfigMap", pool.namespace, profile_config_map_name(request.hash))
        if kept is None or is_owned_by(kept, pool.uid):
            return
        owners = kept["metadata"].get("ownerReferences") or []
        mine = {"apiVersion": API_VERSION, "kind": KIND, "name": pool.name, "uid": pool.uid}
        await self._api.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": kept["metadata"]["name"],
                    "namespace": pool.namespace,
                    "labels": dict(kept["metadata"]["labels"]),
                    "annotations": dict(kept["metadata"].get("annotations") or {}),
                    "ownerReferences": [*owners, mine],
                },
                "data": dict(kept.get("data") or {}),
            }
        )

    # ----------------------------------------------------------------- status
    async def _write_status(self, pool: Pool, body: Body, wanted: dict[str, Any], ready: Verdict) -> None:
        previous = body.get("status") or {}
        if previous == wanted:
            return
        await self._api.apply_status(pool.namespace, pool.name, pool.uid, wanted)
        if _reason(previous) != ready.reason:
            await self._tell(body, ready)

    async def _report_unreadable(self, body: Body, error: ValidationError) -> None:
        first = error.errors()[0]
        field = ".".join(str(step) for step in first["loc"])
        finding = Verdict(True, "SpecUnreadable", f"spec.{field}: {first['msg']}")
        metadata = body["metadata"]
        found = {STALLED: finding, READY: Verdict(False, finding.reason, finding.message)}
        previous = body.get("status") or {}
        generation = metadata.get("generation", 0)
        wanted = {
            **previous,
            "observedGeneration": generation,
            "conditions": conditions(generation, previous.get("conditions") or (), found, _rfc3339(self._now())),
        }
        if wanted != previous:
            await self._api.apply_status(metadata["namespace"], metadata["name"], metadata["uid"], wanted)
            await self._tell(body, found[READY])

    async def _tell(self, body: Body, ready: Verdict) -> None:
        """An event with the reason that Ready has now. Losing one loses nothing: the status has it."""
        metadata, now = body["metadata"], self._now()
        suffix = hashlib.sha256(f"{metadata['uid']}{ready.reason}{now.timestamp()}".encode()).hexdigest()[:12]
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.{suffix}", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            # What time alone mends is nothing to warn of.
            "type": "Warning" if REASONS[ready.reason].remedy else "Normal",
            "reason": ready.reason,
            "message": ready.message[:1000] or ready.reason,
            "source": {"component": MANAGER},
            "reportingComponent": MANAGER,
            "firstTimestamp": _rfc3339(now),
            "lastTimestamp": _rfc3339(now),
            "count": 1,
        }
        try:
            await self._api.create(event)
        except (ApiError, OSError) as error:
            logger.warning("no event for %s/%s: %s", metadata["namespace"], metadata["name"], error)

    def _forget(self, key: Key) -> None:
        namespace, name = key
        self._unwatched.forget(namespace, name)
        names = (name, f"{name}-router", f"{name}-tenants")
        for applied in [each for each in self._applied if each[1] == namespace and each[2] in names]:
            del self._applied[applied]


async def first_of(steps: Sequence[Awaitable[Finding | None]]) -> Finding | None:
    """The first that was found, in their order; all run at once, and all have ended when this returns or raises.

    Nothing may go on behind the back of the next pass. Raises what the first of them that failed has raised.
    """
    outcomes = await asyncio.gather(*steps, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return next((outcome for outcome in outcomes if isinstance(outcome, Finding)), None)


def _conflict(manifest: Mapping[str, Any]) -> Finding:
    return Finding("NameConflict", f"{manifest['kind']} {manifest['metadata']['name']} belongs to somebody else")


def _rejected(manifest: Mapping[str, Any], error: ApiError) -> Finding:
    return Finding("TemplateRejected", f"{manifest['kind']} {manifest['metadata']['name']}: {error.message[:800]}")


def _gpu_resource(pool: Pool) -> str:
    return pool.spec.gpu.resource_name if pool.spec.gpu is not None else "nvidia.com/gpu"


def _reason(previous: Mapping[str, Any]) -> str:
    return next((c["reason"] for c in previous.get("conditions") or () if c["type"] == READY), "")


def _rfc3339(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
