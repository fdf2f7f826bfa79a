"""Settings of the plug-in, carried in vLLM's `additional_config["stream2llm"]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from stream2llm_pod.scheduling.costs import Preemption
from stream2llm_pod.scheduling.policies import DEFAULT_MAX_WAIT_S, POLICIES
from stream2llm_pod.scheduling.victims import COST, PREEMPTION_KINDS

CONFIG_KEY = "stream2llm"
MAX_SWAP_BYTES = 1 << 50


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """All fields are checked when read; ValueError names the field, the value and what is allowed."""

    policy: str = "srpf"
    """Scheduling policy, one of `scheduling.policies.POLICIES`."""
    preemption: str = "recompute"
    """What happens to a victim's KV cache, one of `scheduling.victims.PREEMPTION_KINDS`."""
    swap_bytes: int = 0
    """Host memory for swapped KV blocks, of all ranks together. 0: nothing is ever swapped."""
    cost_profile: Mapping[str, Any] | None = None
    """The document of a cost profile (schema 1). `preemption` `cost` needs one; the others use it to choose
    victims and to count what preemptions cost."""
    min_residency_s: float = 0.0
    """How long a request that was just admitted is spared from preemption, where its policy does not ask for more."""
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
        if not 0 <= self.swap_bytes <= MAX_SWAP_BYTES:
            raise ValueError(f"swap_bytes must be from 0 to {MAX_SWAP_BYTES}, not {self.swap_bytes}")
        if not 0 <= self.min_residency_s < float("inf"):
            raise ValueError(f"min_residency_s must be 0 or more and finite, not {self.min_residency_s}")
        if self.preemption == COST and self.cost_profile is None:
            raise ValueError("preemption 'cost' needs a cost profile (--cost-profile FILE)")

    @property
    def swaps(self) -> bool:
        """Whether a victim's KV may go to host memory."""
        return self.swap_bytes > 0 and self.preemption != Preemption.RECOMPUTE


def read_settings(additional_config: object) -> EngineSettings:
    """The settings in vLLM's additional configuration; defaults where it says nothing."""
    raw = additional_config.get(CONFIG_KEY, {}) if isinstance(additional_config, Mapping) else {}
    known = {field.name for field in fields(EngineSettings)}
    unknown = set(raw) - known
    if unknown:
        raise ValueError(f"additional_config.{CONFIG_KEY}: {', '.join(sorted(unknown))} not known")
    values: dict[str, Any] = dict(raw)
    return EngineSettings(**values)
