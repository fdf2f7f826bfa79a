"""Scenario files, and the arrivals they lead to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream2llm_bench.workloads.arrivals import Bursts, poisson
from stream2llm_bench.workloads.scenarios import InvalidScenario, load_scenario, names, parse_scenario, plain


def document(**changes: Any) -> dict[str, Any]:
    whole = {"name": "x", "qps": 2, "requests": 30, "parts": [{"workload": "crawler"}]}
    return {key: value for key, value in {**whole, **changes}.items() if value is not None}


def test_all_scenarios_of_ours_can_be_drawn() -> None:
    assert {"mixed", "bursty", "multi-tenant", "crawler-pressure", "anns-pressure"} <= set(names())
    for name in names():
        scenario = load_scenario(name)
        assert scenario.name == name
        assert scenario.description
        assert len(scenario.draw(1)) == scenario.requests


def test_parts_have_their_shares_and_tenants() -> None:
    parts = [
        {"workload": "crawler", "tenant": "busy", "share": 9},
        {"workload": "anns", "tenant": "calm", "delay_multiplier": 2},
    ]
    streams = parse_scenario(document(requests=30, parts=parts)).draw(1)
    assert sum(stream.tenant == "busy" for stream in streams) == 27
    assert sum(stream.tenant == "calm" for stream in streams) == 3
    assert all(("anns" in stream.name) == (stream.tenant == "calm") for stream in streams)
    assert [stream.starts_s for stream in streams] == sorted(stream.starts_s for stream in streams)
    # They arrive mixed, not one part after the other.
    assert {stream.tenant for stream in streams[:15]} | {stream.tenant for stream in streams[15:]} == {"busy", "calm"}


def test_what_arrives_when_does_not_depend_on_how_it_is_served() -> None:
    first, second = (plain("crawler", 4.0, 40).draw(3) for _ in range(2))
    assert first == second
    assert [stream.starts_s for stream in first] == [stream.starts_s for stream in plain("anns", 4.0, 40).draw(3)]


def test_arrivals_are_those_of_the_artifact() -> None:
    expected = np.cumsum(np.random.RandomState(42).exponential(0.25, 1000))
    assert list(poisson(1000, 4.0, 42)) == list(expected)
    assert expected[-1] == pytest.approx(250, rel=0.05)


def test_bursts_leave_the_mean_rate_as_it_is() -> None:
    times_s = poisson(20_000, 10.0, 1, Bursts(60.0, 10.0, 5.0))
    assert (np.diff(times_s) >= 0).all()
    assert times_s[-1] == pytest.approx(2000, rel=0.03)
    in_burst = (times_s % 60.0) < 10.0
    # Half of all arrive in a sixth of the time: five times the rate in between.
    assert in_burst.mean() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qps": 0}, "qps must be a number above 0, not 0"),
        ({"qps": "4"}, "qps must be a number above 0, not '4'"),
        ({"qps": float("inf")}, "qps must be a number above 0, not inf"),
        ({"qps": None}, "qps is missing"),
        ({"requests": 0}, "requests must be a whole number from 1 to 1000000, not 0"),
        ({"requests": 1.5}, "requests must be a whole number"),
        ({"parts": []}, "parts must be a list of 1 to 256 items"),
        ({"parts": [{"workload": "web"}]}, r"parts\[0\].workload must be one of crawler, anns, not 'web'"),
        ({"parts": [{"workload": "anns", "share": -1}]}, r"parts\[0\].share must be a number above 0, not -1"),
        ({"parts": [{"workload": "anns", "speed": 1}]}, r"parts\[0\]: speed not known"),
        ({"burst": {}}, "scenario: burst not known"),
        ({"bursts": {"every_s": 10, "length_s": 10, "factor": 2}}, "bursts.length_s must be above 0 and below every_s"),
        ({"bursts": {"every_s": 10, "length_s": 1}}, "bursts.factor must be a number above 0, not None"),
        ({"bursts": {"every_s": 10, "length_s": 1, "factor": 0.5}}, "bursts.factor must be at least 1, not 0.5"),
    ],
)
def test_what_is_wrong_with_a_scenario_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidScenario, match=message):
        parse_scenario(document(**changes))


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidScenario, match="is none of anns-pressure, "):
        load_scenario(str(tmp_path / "missing.yaml"))
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(InvalidScenario, match="not YAML"):
        load_scenario(str(tmp_path / "bad.yaml"))
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(InvalidScenario, match="scenario must be a mapping, not list"):
        load_scenario(str(tmp_path / "list.yaml"))
    (tmp_path / "good.yaml").write_text("{name: own, qps: 1, requests: 2, parts: [{workload: anns}]}")
    assert load_scenario(str(tmp_path / "good.yaml")).draw(1)[0].messages


@pytest.mark.parametrize("qps", [0.0, -1.0, float("nan")])
def test_a_rate_must_be_above_zero(qps: float) -> None:
    with pytest.raises(ValueError, match="qps must be above 0 and finite"):
        poisson(3, qps, 1)
