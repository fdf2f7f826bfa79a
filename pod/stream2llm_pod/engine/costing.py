"""The cost model of the running engine, from the profile it was given."""

from __future__ import annotations

from typing import Any

from stream2llm.costprofile.document import parse_profile
from stream2llm_pod.engine.configuring import EngineSettings
from stream2llm_pod.engine.identifying import profile_key
from stream2llm_pod.scheduling.costs import CostCurve, CostModel


def read_costs(settings: EngineSettings, vllm_config: Any) -> CostModel | None:
    """The model of `settings.cost_profile`; None if there is no profile.

    Raises InvalidProfile (a ValueError) for one that cannot be read, and ValueError, naming each difference, for one of
    another engine: its figures would be wrong here.
    """
    if settings.cost_profile is None:
        return None
    profile = parse_profile(settings.cost_profile)
    differences = profile.key.differences(profile_key(vllm_config))
    if differences:
        raise ValueError(
            "the cost profile is of another engine ("
            + "; ".join(differences)
            + "); measure one here with `stream2llm profile`, or start without --cost-profile"
        )
    return CostModel(*(CostCurve(curve.points) for curve in (profile.prefill, profile.swap_out, profile.swap_in)))
