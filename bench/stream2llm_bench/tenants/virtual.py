"""The pod's real scheduler and KV cache manager on simulated hardware, in virtual time, for two tenants.

*Alone on its share*: on a machine that is the whole one scaled to the tenant's share w ÷ (sum of weights). Each step
takes 1 ÷ share times as long, and there are share times as many KV blocks and run slots. The tenant sends the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stream2llm.costprofile import CostProfile, ProfileKey
from stream2llm_bench.preemption.replaying import Outcome, Replay
from stream2llm_bench.preemption.workloads import Arriving, Kind, Workload
from stream2llm_bench.renewing import renew_scheduler
from stream2llm_bench.simulated_core import BLOCK_SIZE, made_up_profile, make_core

BUDGET_TOKENS = 2048
LONGEST_TOKENS = 16_384
SLOTS = 256
MOST_BLOCKS = 8192

STEP_MS, TOKEN_MS = 4.0, 0.02
"""Of prefill: for a step and a token, 46,000 tokens a second in full steps."""
COPY_MS, COPIED_TOKEN_MS = 2.0, 0.005
FULL_STEP_S = (STEP_MS + BUDGET_TOKENS * TOKEN_MS) / 1e3
TOKENS_PER_S = BUDGET_TOKENS / FULL_STEP_S

STEADY, FLOOD = "steady", "flood"


@dataclass(frozen=True, slots=True)
class Scenario:
    """Two tenants on one engine."""

    name: str
    steady: Workload
    """Of the tenant whose waiting is measured."""
    steady_weight: float
    flood: Workload
    """Of the other one; it sends whole prompts and many times its share."""
    flood_weight: float
    blocks: int = MOST_BLOCKS

    @property
    def share(self) -> float:
        return self.steady_weight / (self.steady_weight + self.flood_weight)

    def draw(self, seed: int) -> tuple[list[Arriving], list[Arriving]]:
        """The streams of the steady tenant, and those of the flooding one."""
        steady = [replace(s, tenant=STEADY, weight=self.steady_weight) for s in self.steady.draw(seed)]
        flood = [replace(s, tenant=FLOOD, weight=self.flood_weight) for s in self.flood.draw(seed)]
        return steady, flood


@dataclass(slots=True)
class Comparison:
    """Time to first token of the steady tenant's streams, in ms, in one order."""

    flooded_ms: list[float]
    alone_ms: list[float]
    used: float
    """Prompt tokens computed beside the flood, by those that full steps compute in that time."""


def linear_profile(key: ProfileKey, slowness: float = 1.0) -> CostProfile:
    """Everything takes `slowness` times as long."""
    lengths = tuple(BLOCK_SIZE << i for i in range(10))
    prefill_ms = [slowness * (STEP_MS + TOKEN_MS * tokens) for tokens in lengths]
    copy_ms = [slowness * (COPY_MS + COPIED_TOKEN_MS * tokens) for tokens in lengths]
    return made_up_profile(key, lengths, prefill_ms, copy_ms)


class SharedEngine:
    """One engine core without a model; each run has a scheduler of its own."""

    def __init__(self) -> None:
        from stream2llm_pod.engine.configuring import EngineSettings
        from stream2llm_pod.engine.identifying import profile_key

        self._core, config = make_core(
            EngineSettings(preemption="swap", swap_bytes=1),
            longest_tokens=LONGEST_TOKENS,
            budget_tokens=BUDGET_TOKENS,
            slots=SLOTS,
            blocks=MOST_BLOCKS + 1,
        )
        self._core.full_kv_cache_config = self._core.scheduler.kv_cache_config
        self._key = profile_key(config)

    def run(
        self, streams: Sequence[Arriving], policy: str, *, share: float = 1.0, blocks: int = MOST_BLOCKS
    ) -> Outcome:
        """One run on the machine scaled to `share`, until the steady tenant has all its answers; `blocks` are those of
        the whole machine. The times to first token count from when a chunk arrives, be it in the middle of a step."""
        from stream2llm_pod.engine.configuring import EngineSettings
        from stream2llm_pod.engine.simulation.driving import VirtualTime

        core: Any = self._core
        document = json.loads(linear_profile(self._key, 1 / share).to_json())
        core.model_executor.use_profile(document)
        core.vllm_config.scheduler_config.max_num_seqs = max(int(SLOTS * share), 1)
        start_s = core.model_executor.clock()
        settings = EngineSettings(policy=policy, cost_profile=document)
        renew_scheduler(core, settings, blocks=max(int(blocks * share), 1), clock=core.model_executor.clock)
        replay = Replay(core, streams, core.model_executor.clock)
        waiting = {stream.name for stream in streams if stream.tenant == STEADY}

        def note(output: Any, now_s: float) -> None:
            replay.note(output, now_s)
            if output.finish_reason is not None and output.request_id in waiting:
                waiting.remove(output.request_id)
                if not waiting:
                    time.at(now_s, replay.give_up)

        time = VirtualTime(core, note)
        late_ms: dict[str, float] = {}

        def arrive(when_s: float, stream: str, number: int, tokens: int, last: bool) -> Callable[[], None]:
            def act() -> None:
                # What falls into a step is taken after it, and has waited until then.
                late_ms[stream] = 1e3 * (core.model_executor.clock() - when_s)
                replay.send(stream, number, tokens, last)

            return act

        for when_s, stream, number, tokens, last in replay.arrivals:
            time.at(start_s + when_s, arrive(start_s + when_s, stream, number, tokens, last))
        time.run()
        outcome = replay.end()
        outcome.completion_s -= start_s
        outcome.ttft_ms_of = {stream: ms + late_ms[stream] for stream, ms in outcome.ttft_ms_of.items()}
        return outcome


def compare(engine: SharedEngine, scenario: Scenario, policy: str, seed: int) -> Comparison:
    """The same streams beside the flood and alone on their share."""
    steady, flood = scenario.draw(seed)
    alone = engine.run(steady, policy, share=scenario.share, blocks=scenario.blocks)
    flooded = engine.run([*steady, *flood], policy, blocks=scenario.blocks)
    names = [stream.name for stream in steady]
    return Comparison(
        [flooded.ttft_ms_of[name] for name in names],
        [alone.ttft_ms_of[name] for name in names],
        flooded.prefill_tokens / TOKENS_PER_S / flooded.completion_s,
    )


STEADY_LOAD, FLOOD_LOAD = 0.7, 5.0
"""What each tenant asks for, by what its share computes."""
WHOLE = Kind(tokens=(1000, 7000), chunks=(1, 1), gap_s=1.0)
CHUNKED = Kind(tokens=(2000, 8000), chunks=(2, 5), gap_s=1.0)
FLOODING = Kind(tokens=(4000, 12_000), chunks=(1, 1), gap_s=1.0)
FLOODING_OPEN = Kind(tokens=(4000, 12_000), chunks=(3, 6), gap_s=2.0)
"""Their streams wait for their producers for long, and hold memory meanwhile."""
SMALL_POOL_BLOCKS = 1500
"""Room for six of the flood's streams."""


def _workload(name: str, kind: Kind, load: float, share: float, streams: int) -> Workload:
    """`load` times what the share of the machine computes."""
    return Workload(name, (kind,), streams, load * TOKENS_PER_S * share * 2 / sum(kind.tokens))


def scenarios(streams: int = 80) -> tuple[Scenario, ...]:
    """What is compared, with so many streams of the steady tenant. The flood lasts longer."""

    def scenario(name: str, kind: Kind, flooding: Kind, flood_weight: float, blocks: int = MOST_BLOCKS) -> Scenario:
        share = 1 / (1 + flood_weight)
        steady = _workload("steady", kind, STEADY_LOAD, share, streams)
        # It goes on as long as the other one, and half as long again.
        flood_streams = 1.5 * streams / steady.streams_per_s * FLOOD_LOAD * (1 - share) * TOKENS_PER_S
        count = int(flood_streams * 2 / sum(flooding.tokens))
        flood = _workload("flood", flooding, FLOOD_LOAD, 1 - share, count)
        return Scenario(name, steady, 1.0, flood, flood_weight, blocks)

    return (
        scenario("whole prompts", WHOLE, FLOODING, 1.0),
        scenario("streams", CHUNKED, FLOODING, 1.0),
        scenario("a quarter", CHUNKED, FLOODING, 3.0),
        scenario("little memory", CHUNKED, FLOODING_OPEN, 1.0, SMALL_POOL_BLOCKS),
    )
