"""The vLLM arguments of a streaming pod."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from stream2llm_pod.engine.configuring import CONFIG_KEY, EngineSettings

OWNED_ARGUMENTS = ("scheduler_cls", "kv_transfer_config", "scheduling_policy", "scheduler_reserve_full_isl")
"""Arguments of vLLM that the plug-in sets itself; a user's value for one of them would be lost or break streams."""

SYNC_SCHEDULER = "stream2llm_pod.engine.scheduler.StreamScheduler"
ASYNC_SCHEDULER = "stream2llm_pod.engine.scheduler.AsyncStreamScheduler"


def engine_arguments(settings: EngineSettings, *, async_scheduling: bool) -> dict[str, Any]:
    """Keyword arguments for vLLM's `EngineArgs`. The scheduler class must match how the engine runs its steps."""
    return {
        "scheduler_cls": ASYNC_SCHEDULER if async_scheduling else SYNC_SCHEDULER,
        "async_scheduling": async_scheduling,
        "scheduler_reserve_full_isl": False,
        "kv_transfer_config": {
            "kv_connector": "StreamConnector",
            "kv_connector_module_path": "stream2llm_pod.engine.swap.connector",
            "kv_role": "kv_both",
        },
        "additional_config": {CONFIG_KEY: asdict(settings)},
    }
