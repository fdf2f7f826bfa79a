"""The same three ways on vLLM's real engine with SmolLM2, in real time, with a cost profile measured just before."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stream2llm.costprofile import CostProfile, Curve
from stream2llm_bench.preemption.replaying import Outcome, Replay
from stream2llm_bench.preemption.workloads import Arriving, Kind, Workload, blocks_for_a_third, most_open_tokens
from stream2llm_bench.progress import Say
from stream2llm_bench.renewing import block_bytes, renew_scheduler

if TYPE_CHECKING:
    from stream2llm_pod.profiling.engine import MeasuredEngine

ARGUMENTS = (
    "--dtype=float32",
    "--enforce-eager",
    "--block-size=32",
    "--max-model-len=2048",
    "--max-num-batched-tokens=256",
    "--max-num-seqs=32",
)
WORKLOAD = Workload("real", (Kind((64, 160), (2, 3), 3.0), Kind((320, 560), (3, 4), 3.0)), streams=6, streams_per_s=1.0)
PROFILE_LENGTHS = (32, 128, 512)
SAMPLES = 3


@dataclass(slots=True)
class RealRuns:
    """What the real engine gave: the measured profile, and one outcome for each way."""

    profile: CostProfile
    outcomes: dict[str, Outcome] = field(default_factory=dict)


def run_real(model: str, ways: Sequence[str], say: Say) -> RealRuns:
    """Load the model, measure a coarse profile, replay the workload once for each way."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    # One process: the schedulers take turns on one set of workers, and loading takes half the time.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from stream2llm_pod.profiling.engine import MeasuredEngine, make_engine_config

    say("real engine: loading SmolLM2")
    engine = MeasuredEngine(make_engine_config(model, ARGUMENTS))
    try:
        core = engine.core
        core.full_kv_cache_config = core.scheduler.kv_cache_config
        say("real engine: measuring a coarse cost profile")
        runs = RealRuns(_measure(engine))
        streams = WORKLOAD.draw(0)
        for way in ways:
            say(f"real engine: {way}")
            runs.outcomes[way] = _replay(engine, streams, way, runs.profile)
        return runs
    finally:
        engine.close()


def _measure(engine: MeasuredEngine) -> CostProfile:
    prefill, out, back = [], [], []
    for tokens in PROFILE_LENGTHS:
        engine.prefill_s(tokens, float("inf"))
        samples = [engine.prefill_s(tokens, float("inf")) or 0.0 for _ in range(SAMPLES)]
        copies = engine.copies_s(tokens, SAMPLES)
        prefill.append(1e3 * statistics.median(samples))
        out.append(1e3 * statistics.median(out_s for out_s, _ in copies))
        back.append(1e3 * statistics.median(in_s for _, in_s in copies))
    return engine.profile(
        Curve(PROFILE_LENGTHS, tuple(prefill)), Curve(PROFILE_LENGTHS, tuple(out)), Curve(PROFILE_LENGTHS, tuple(back))
    )


def _replay(engine: MeasuredEngine, streams: list[Arriving], way: str, profile: CostProfile) -> Outcome:
    import json

    from stream2llm_pod.engine.configuring import EngineSettings

    core, block_size = engine.core, engine.block_size
    # Enough for all of them, as far as the workers' pool goes.
    host_blocks = min(most_open_tokens(streams) // block_size + len(streams), engine.host_tokens // block_size)
    settings = EngineSettings(
        preemption=way,
        swap_bytes=host_blocks * block_bytes(core),
        cost_profile=json.loads(profile.to_json()),
    )
    renew_scheduler(core, settings, blocks=blocks_for_a_third(streams, block_size), clock=time.monotonic)
    started_s = time.monotonic()
    replay = Replay(core, streams, time.monotonic)
    arrivals = list(reversed(replay.arrivals))
    while replay.unanswered:
        while arrivals and arrivals[-1][0] <= time.monotonic() - started_s:
            _, stream, number, tokens, last = arrivals.pop()
            replay.send(stream, number, tokens, last)
        if core.scheduler.has_requests():
            outputs, executed = core.step_fn()
            core.post_step(executed)
            for of_client in (outputs or {}).values():
                for output in of_client.outputs:
                    replay.note(output, time.monotonic())
        elif arrivals:
            time.sleep(max(arrivals[-1][0] - (time.monotonic() - started_s), 0.0))
    outcome = replay.end()
    outcome.completion_s -= started_s
    return outcome
