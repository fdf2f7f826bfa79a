"""Where recomputing and swapping cost the same."""

from __future__ import annotations

from itertools import pairwise

from stream2llm.costprofile import CostProfile
from stream2llm_pod.scheduling.costs import CostCurve, CostModel, Preemption, choose


def cost_model(profile: CostProfile) -> CostModel:
    """The model that an engine with this profile starts with."""
    return CostModel(
        CostCurve(profile.prefill.points), CostCurve(profile.swap_out.points), CostCurve(profile.swap_in.points)
    )


def crossings(profile: CostProfile) -> list[tuple[int, Preemption]]:
    """The numbers of tokens from which on another way is cheaper, with that way, up to the longest measured prompt.

    The first is 1 token, with what is cheaper there. Between two points both costs are straight lines, which cross once
    at most, so it is enough to look at the points and to halve the interval in which the answer changes.
    """
    costs = cost_model(profile)

    def cheaper(tokens: int) -> Preemption:
        return choose(costs, tokens=tokens, swapped_tokens=tokens, has_room=True)

    known = sorted({1, *profile.prefill.tokens, *profile.swap_out.tokens, *profile.swap_in.tokens})
    found = [(1, cheaper(1))]
    for low, high in pairwise(known):
        if cheaper(high) is found[-1][1]:
            continue
        below, above = low, high
        while above - below > 1:
            middle = (below + above) // 2
            below, above = (middle, above) if cheaper(middle) is found[-1][1] else (below, middle)
        found.append((above, cheaper(above)))
    return found
