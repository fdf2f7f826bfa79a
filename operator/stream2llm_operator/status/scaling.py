"""Whether the autoscaler works, from what it says of itself, and what it has decided. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stream2llm_operator.desired.scaling import SCALED_OBJECT, asked_metrics, backend
from stream2llm_operator.pool import Pool
from stream2llm_operator.status.deriving import Verdict
from stream2llm_operator.status.diagnosing import Finding

KEPT_DECISIONS = 5
SOME_TRIGGERS_FAIL = "PartialTriggerError"
"""KEDA says of an object some of whose triggers fail that it is not known whether it is ready."""


@dataclass(frozen=True, slots=True)
class Scaler:
    """The object that scales and the HorizontalPodAutoscaler at work, each None where there is none (yet).

    trouble: why it could not be made.
    """

    scaled_object: Mapping[str, Any] | None = None
    autoscaler: Mapping[str, Any] | None = None
    trouble: Finding | None = None


def scaling_verdict(pool: Pool, scaler: Scaler) -> Verdict:
    """The condition ScalingReady."""
    scaling = pool.spec.autoscaling
    if scaling is None:
        return Verdict(True, "NotAutoscaled")
    if scaler.trouble is not None:
        return Verdict(False, scaler.trouble.reason, scaler.trouble.message)
    if backend(pool) == SCALED_OBJECT:
        if scaler.scaled_object is None:
            return Verdict(None, "Pending")
        found = _conditions(scaler.scaled_object)
        ready = found.get("Ready")
        if ready is None or (ready["status"] == "Unknown" and ready.get("reason") != SOME_TRIGGERS_FAIL):
            return Verdict(None, "Pending", "KEDA has not looked at the ScaledObject yet")
        if ready["status"] != "True":
            return Verdict(False, "SignalsMissing", _lacking(pool, scaler, _said(ready)))
        if (fallback := found.get("Fallback")) is not None and fallback["status"] == "True":
            return Verdict(False, "SignalsMissing", _said(fallback))
    elif scaler.autoscaler is None:
        return Verdict(None, "Pending")
    if scaler.autoscaler is not None:
        found = _conditions(scaler.autoscaler)
        able = found.get("AbleToScale")
        if able is not None and able["status"] == "False":
            return Verdict(False, "CannotScale", _said(able))
        active = found.get("ScalingActive")
        # An autoscaler of something that is at 0 says so, and that is how it should be.
        if active is not None and active["status"] == "False" and active.get("reason") != "ScalingDisabled":
            return Verdict(False, "SignalsMissing", _lacking(pool, scaler, _said(active)))
        if _missing(pool, scaler):
            # The autoscaler itself complains only once it would like to shrink.
            return Verdict(False, "SignalsMissing", _lacking(pool, scaler, ""))
    return Verdict(True, "Preview" if scaling.mode == "Preview" else "Autoscaled")


def scaling_status(pool: Pool, previous: Mapping[str, Any], scaler: Scaler, now: str) -> dict[str, Any] | None:
    """`status.autoscaling`; None where nobody scales. previous: the whole status as it was; now: RFC 3339."""
    scaling, kind = pool.spec.autoscaling, backend(pool)
    if scaling is None or kind is None:
        return None
    before = previous.get("autoscaling") or {}
    history = [dict(decision) for decision in before.get("history") or ()]
    count, count_before = pool.spec.replicas, before.get("current")
    if count_before is not None and count_before != count:
        history.append({"time": now, "from": count_before, "to": count, "reason": _why(pool, scaler)})
    result: dict[str, Any] = {"backend": kind, "current": count, "history": history[-KEPT_DECISIONS:]}
    desired = ((scaler.autoscaler or {}).get("status") or {}).get("desiredReplicas")
    if desired is not None:
        # In Preview the autoscaler's own bounds are wide, so that it leaves the pool alone.
        result["desired"] = min(max(desired, scaling.min_replicas), scaling.max_replicas)
    elif "desired" in before:
        result["desired"] = before["desired"]
    return result


def _missing(pool: Pool, scaler: Scaler) -> list[str]:
    """Signals that the autoscaler has no figures of; none where it does not say which it has."""
    status = (scaler.autoscaler or {}).get("status") or {}
    current = status.get("currentMetrics")
    active = _conditions(scaler.autoscaler or {}).get("ScalingActive")
    if current is None or active is None or active.get("reason") == "ScalingDisabled":
        return []
    known = {((metric.get("external") or {}).get("metric") or {}).get("name") for metric in current}
    return [signal for metric, signal in asked_metrics(pool).items() if metric not in known]


def _lacking(pool: Pool, scaler: Scaler, said: str) -> str:
    """What an autoscaler says of missing figures, led by whose they are."""
    missing = ", ".join(_missing(pool, scaler))
    return ": ".join(part for part in (f"no figures of {missing}" if missing else "", said) if part)


def _why(pool: Pool, scaler: Scaler) -> str:
    """Which signal asked for the number of pods, or what the autoscaler says of that in its own words."""
    active = _conditions(scaler.autoscaler or {}).get("ScalingActive")
    if active is None:
        return "the number of pods was changed"
    text = _said(active)
    return next((f"asked for by {signal}" for metric, signal in asked_metrics(pool).items() if metric in text), text)


def _conditions(body: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    found: Iterable[Mapping[str, Any]] = (body.get("status") or {}).get("conditions") or ()
    return {condition["type"]: condition for condition in found}


def _said(condition: Mapping[str, Any]) -> str:
    return str(condition.get("message") or condition.get("reason") or "")[:500]
