"""Everything stops now and then, and every stream is answered once, in full, as if nothing had happened."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from pool import SIMULATION, Pool
from running import Run
from workload import plan_faults, plan_streams

pytestmark = [pytest.mark.e2e, pytest.mark.redis]


SECONDS_PER_STREAM = 0.6
FAULTS_PER_SECOND = 0.1


def option(name: str, default: int) -> int:
    return int(os.environ.get(f"CHAOS_{name}") or default)


def chaos(
    count: int, tiny_text_model: Path, redis_binary: str, folder: Path, *, simulated: bool = True, faults: int = 0
) -> None:
    seed = option("SEED", random.SystemRandom().randrange(1_000_000))
    count = option("STREAMS", count)
    seconds = option("SECONDS", round(count * SECONDS_PER_STREAM))
    number = option("FAULTS", faults or round(seconds * FAULTS_PER_SECOND))
    streams = plan_streams(seed, count, seconds)
    planned = (
        plan_faults(seed, number, seconds, 3, 2) if simulated else plan_faults(seed, number, seconds, 3, 0, ["kill"])
    )
    print(f"\nchaos: CHAOS_SEED={seed}, {count} streams in {seconds} s, {len(planned)} faults", flush=True)
    pool = Pool(redis_binary, tiny_text_model, folder, pods=3, routers=2, simulation=SIMULATION if simulated else None)
    try:
        pool.wait_ready()
        run = Run(pool, streams, planned)
        run.run()
        assert run.wrong() == []
        assert run.left_behind() == []
    finally:
        pool.close()


def test_a_hundred_streams(tiny_text_model: Path, redis_binary: str, tmp_path: Path) -> None:
    chaos(100, tiny_text_model, redis_binary, tmp_path)


@pytest.mark.long
def test_a_thousand_streams(tiny_text_model: Path, redis_binary: str, tmp_path: Path) -> None:
    chaos(1_000, tiny_text_model, redis_binary, tmp_path)


@pytest.mark.long
@pytest.mark.engine
def test_on_the_real_engine(tiny_text_model: Path, redis_binary: str, tmp_path: Path) -> None:
    """Five pods are killed, each after the one before it is back: an engine takes its time to load."""
    chaos(60, tiny_text_model, redis_binary, tmp_path, simulated=False, faults=5)
