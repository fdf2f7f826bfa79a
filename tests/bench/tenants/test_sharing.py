"""A tenant beside one that floods the engine waits no longer than on a machine of its share. Virtual time: each run is
the same to the last digit, so this may be asserted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stream2llm_bench.tenants.virtual import Scenario, SharedEngine, compare, scenarios
from stream2llm_pod.scheduling.policies import POLICIES

pytestmark = pytest.mark.simulated
STREAMS = 24
WHOLE, STREAMING, QUARTER, LITTLE_MEMORY = scenarios(STREAMS)


@pytest.fixture(scope="module")
def engine() -> SharedEngine:
    return SharedEngine()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("scenario", [WHOLE, LITTLE_MEMORY], ids=lambda scenario: scenario.name)
def test_p95_beside_a_flood_is_within_one_and_a_half_times_of_alone_on_the_share(
    engine: SharedEngine, scenario: Scenario, policy: str
) -> None:
    comparison = compare(engine, scenario, policy, 1)
    assert len(comparison.flooded_ms) == len(comparison.alone_ms) == STREAMS
    assert np.percentile(comparison.flooded_ms, 95) <= 1.5 * np.percentile(comparison.alone_ms, 95)
    # The flood gets what the other one leaves: the machine is busy all the time.
    assert comparison.used > 0.9


def test_a_light_tenant_has_its_quarter(engine: SharedEngine) -> None:
    comparison = compare(engine, QUARTER, "srpf", 1)
    assert np.percentile(comparison.flooded_ms, 95) <= 1.5 * np.percentile(comparison.alone_ms, 95)


def test_without_tenants_the_flood_would_drown_it(engine: SharedEngine) -> None:
    """The control: the same streams, but nobody says whose they are."""
    steady, flood = WHOLE.draw(1)
    alone = engine.run(steady, "fcfs", share=WHOLE.share)
    anonymous = engine.run([*steady, *(replace(stream, tenant="steady") for stream in flood)], "fcfs")
    names = [stream.name for stream in steady]
    p95_alone, p95_flooded = (
        np.percentile([outcome.ttft_ms_of[name] for name in names], 95) for outcome in (alone, anonymous)
    )
    assert p95_flooded > 5 * p95_alone
