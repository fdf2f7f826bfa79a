"""Settings of the plug-in, carried in vLLM's `additional_config["stream2llm"]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from stream2llm_pod.scheduling.policies import DEFAULT_MAX_WAIT_S, POLICIES

CONFIG_KEY = "stream2llm"
PREEMPTION_KINDS = ("recompute",)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """All fields are checked when read; ValueError names the field, the value and what is allowed."""

    policy: str = "srpf"
    """Scheduling policy, one of `scheduling.policies.POLICIES`."""
    preemption: str = "recompute"
    """What happens to a victim's KV cache."""
    max_wait_s: float = DEFAULT_MAX_WAIT_S
    """Ageing bound of the policies that age, in seconds."""
    namespace: str = "default"
    pool: str = "default"
    pod: str = ""
    """The three labels on every metric."""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"policy {self.policy!r} is not known; choose one of {', '.join(POLICIES)}")
        if self.preemption not in PREEMPTION_KINDS:
            raise ValueError(
                f"preemption {self.preemption!r} is not known; choose one of {', '.join(PREEMPTION_KINDS)}"
            )
        if not self.max_wait_s > 0:
            raise ValueError(f"max_wait_s must be above 0, not {self.max_wait_s}")


def read_settings(additional_config: object) -> EngineSettings:
    """The settings in vLLM's additional configuration; defaults where it says nothing."""
    raw = additional_config.get(CONFIG_KEY, {}) if isinstance(additional_config, Mapping) else {}
    known = {field.name for field in fields(EngineSettings)}
    unknown = set(raw) - known
    if unknown:
        raise ValueError(f"additional_config.{CONFIG_KEY}: {', '.join(sorted(unknown))} not known")
    values: dict[str, Any] = dict(raw)
    return EngineSettings(**values)
