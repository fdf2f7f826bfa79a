"""The pod's real scheduler and KV cache manager on simulated hardware, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable

from stream2llm.costprofile import CostProfile, ProfileKey
from stream2llm_bench.preemption.replaying import Outcome, Replay
from stream2llm_bench.preemption.workloads import Arriving, Kind, Workload, blocks_for_a_third, most_open_tokens
from stream2llm_bench.renewing import block_bytes, renew_scheduler
from stream2llm_bench.simulated_core import BLOCK_SIZE, made_up_profile, make_core

BUDGET_TOKENS = 2048
LONGEST_TOKENS = 16_384
SLOTS = 256
MOST_BLOCKS = 4096

STEP_MS, TOKEN_MS, PAIR_MS = 4.0, 0.01, 1e-5
"""Of prefill: for a step, a token, and a token squared."""
COPY_MS, COPIED_TOKEN_MS = 2.0, 0.02
"""Of a copy, each way: to start it, and for each token. The round trip costs as much as recomputing at 3,000 tokens."""

SHORT = Kind(tokens=(200, 1200), chunks=(3, 8), gap_s=4.0)
LONG = Kind(tokens=(5000, 12_000), chunks=(3, 8), gap_s=4.0)
LONG_FROM_THE_START = Kind(tokens=(6000, 12_000), chunks=(2, 4), gap_s=4.0)
"""Few large pieces: nearly all of what gives way is beyond the crossing."""
WORKLOADS = (
    Workload("short", (SHORT,), streams=200, streams_per_s=6.0),
    Workload("long", (LONG_FROM_THE_START,), streams=60, streams_per_s=0.4),
    Workload("mixed", (SHORT, LONG), streams=100, streams_per_s=0.6),
)


def crossing_profile(key: ProfileKey, *, exchanged: bool = False) -> CostProfile:
    """A profile for an engine with this key. Short prompts are cheaper to compute, long ones cheaper to copy;
    exchanged: the other way round, with the round trip's curve for prefill and half of prefill's each way."""
    lengths = tuple(BLOCK_SIZE << i for i in range(10))
    computing = [STEP_MS + TOKEN_MS * tokens + PAIR_MS * tokens * tokens for tokens in lengths]
    copying = [COPY_MS + COPIED_TOKEN_MS * tokens for tokens in lengths]
    if exchanged:
        computing, copying = [2 * ms for ms in copying], [ms / 2 for ms in computing]
    return made_up_profile(key, lengths, computing, copying)


class VirtualEngine:
    """One engine core without a model; each run has a scheduler of its own."""

    def __init__(self) -> None:
        from stream2llm_pod.engine.configuring import EngineSettings
        from stream2llm_pod.engine.identifying import profile_key

        self._core, config = make_core(
            EngineSettings(preemption="swap", swap_bytes=1),
            longest_tokens=LONGEST_TOKENS,
            budget_tokens=BUDGET_TOKENS,
            slots=SLOTS,
            blocks=MOST_BLOCKS,
        )
        self._core.full_kv_cache_config = self._core.scheduler.kv_cache_config
        self.key = profile_key(config)

    def run(self, streams: list[Arriving], preemption: str, profile: CostProfile) -> Outcome:
        """One run; the hardware and, for `cost`, the scheduler's predictions are of the same profile."""
        from stream2llm_pod.engine.configuring import EngineSettings
        from stream2llm_pod.engine.simulation.driving import VirtualTime

        core, document = self._core, json.loads(profile.to_json())
        core.model_executor.use_profile(document)
        start_s = core.model_executor.clock()
        host_blocks = 2 * most_open_tokens(streams) // BLOCK_SIZE + len(streams)
        settings = EngineSettings(
            preemption=preemption, swap_bytes=host_blocks * block_bytes(core), cost_profile=document
        )
        blocks = blocks_for_a_third(streams, BLOCK_SIZE)
        renew_scheduler(core, settings, blocks=blocks, clock=core.model_executor.clock)
        replay = Replay(core, streams, core.model_executor.clock)
        time = VirtualTime(core, replay.note)
        for when_s, stream, number, tokens, last in replay.arrivals:
            time.at(start_s + when_s, _sending(replay, stream, number, tokens, last))
        time.run()
        outcome = replay.end()
        outcome.completion_s -= start_s
        return outcome


def _sending(replay: Replay, stream: str, number: int, tokens: int, last: bool) -> Callable[[], None]:
    return lambda: replay.send(stream, number, tokens, last)
