"""How long a step takes on the hardware of a cost profile. Deterministic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stream2llm.costprofile import CostProfile
from stream2llm_pod.engine.swap.backend import Direction, TimedCopy
from stream2llm_pod.engine.swap.metadata import copies_in
from stream2llm_pod.scheduling.costs import CostCurve, CostModel


def cost_model(profile: CostProfile) -> CostModel:
    """The curves of a profile, uncorrected."""
    return CostModel(*(CostCurve(curve.points) for curve in (profile.prefill, profile.swap_out, profile.swap_in)))


class StepTimes:
    """A step pays its overhead once and for each request what the prefill curve rises by over its tokens.

    Its copies, one call a direction, take what the swap curves say, and run as the CUDA backend's: all in one stream,
    in the order out, in. Computing waits for what comes in, and so for what went out before it on the same bus. Of what
    goes out it waits for all but the last `staging_blocks`, which are read at once and leave behind its back.
    """

    def __init__(self, costs: CostModel, block_size: int, staging_blocks: int) -> None:
        self._costs, self._block_size, self._staging_blocks = costs, block_size, staging_blocks
        self._bus_free_s = 0.0

    def step(self, scheduled: Any, now_s: float) -> tuple[float, list[TimedCopy]]:
        """When the step that leaves at `now_s` has ended, and its copies as the workers report them.

        scheduled: vLLM's scheduler output. A decoding request adds the slope of the curve at its length.
        """
        copies = copies_in(scheduled.kv_connector_metadata)
        timed = []
        starts_s = now_s
        for direction, curve, blocks in (
            (Direction.OUT, self._costs.swap_out, len(copies.out)),
            (Direction.IN, self._costs.swap_in, len(copies.into)),
        ):
            if not blocks:
                continue
            copy = TimedCopy(direction, blocks, curve.ms(blocks * self._block_size) / 1e3)
            timed.append(copy)
            begins_s = max(self._bus_free_s, now_s)
            self._bus_free_s = begins_s + copy.seconds
            staged = min(self._staging_blocks / blocks, 1.0) if direction is Direction.OUT else 0.0
            if staged < 1:
                starts_s = begins_s + copy.seconds * (1 - staged)
        if not scheduled.total_num_scheduled_tokens:
            return starts_s, timed
        return starts_s + self._costs.step_ms(spans(scheduled)) / 1e3, timed


def spans(scheduled: Any) -> Iterator[tuple[int, int]]:
    """For each request in the step the tokens that it computes, from the first up to, and without, the second."""
    tokens = scheduled.num_scheduled_tokens
    for new in scheduled.scheduled_new_reqs:
        yield new.num_computed_tokens, new.num_computed_tokens + tokens[new.req_id]
    cached = scheduled.scheduled_cached_reqs
    for req_id, computed_tokens in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        yield computed_tokens, computed_tokens + tokens[req_id]
