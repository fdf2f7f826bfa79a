"""The vLLM arguments of a streaming pod."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from stream2llm_pod.engine.configuring import CONFIG_KEY, EngineSettings

OWNED_ARGUMENTS = ("scheduler_cls", "scheduling_policy", "scheduler_reserve_full_isl")
"""Arguments of vLLM that the plug-in sets itself; a user's value for one of them would be lost or break streams."""

SYNC_SCHEDULER = "stream2llm_pod.engine.scheduler.StreamScheduler"
ASYNC_SCHEDULER = "stream2llm_pod.engine.scheduler.AsyncStreamScheduler"


CONNECTOR = "StreamConnector"
CONNECTOR_MODULE = "stream2llm_pod.engine.swap.connector"
MULTI_CONNECTOR = "MultiConnector"


def engine_arguments(
    settings: EngineSettings, *, async_scheduling: bool, other_connector: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Keyword arguments for vLLM's `EngineArgs`. The scheduler class must match how the engine runs its steps.

    other_connector: a KV transfer configuration to use beside ours, or one of several connectors (`MultiConnector`).
    """
    return {
        "scheduler_cls": ASYNC_SCHEDULER if async_scheduling else SYNC_SCHEDULER,
        "async_scheduling": async_scheduling,
        "scheduler_reserve_full_isl": False,
        "kv_transfer_config": _connectors(other_connector),
        "additional_config": {CONFIG_KEY: asdict(settings)},
    }


def _connectors(other: Mapping[str, Any] | None) -> dict[str, Any]:
    ours: dict[str, Any] = {
        "kv_connector": CONNECTOR,
        "kv_connector_module_path": CONNECTOR_MODULE,
        "kv_role": "kv_both",
    }
    if other is None:
        return ours
    # vLLM reads these two of the whole only, and wants no engine id in the parts.
    whole = {name: other[name] for name in ("engine_id", "kv_load_failure_policy") if other.get(name) is not None}
    extra: dict[str, Any] = {}
    others = [{name: value for name, value in other.items() if name != "engine_id"}]
    if other.get("kv_connector") == MULTI_CONNECTOR:
        extra = dict(other.get("kv_connector_extra_config") or {})
        others = list(extra.pop("connectors", ()))
    return {
        **whole,
        "kv_connector": MULTI_CONNECTOR,
        # As ours: vLLM then holds freed blocks back until no step in flight can write to them.
        "kv_role": "kv_both",
        # Ours first: what was swapped is exactly what the request had, and asking for it costs nothing.
        "kv_connector_extra_config": {**extra, "connectors": [ours, *others]},
    }
