"""What `bench route` makes of its measurements, and that its parts measure at all."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from stream2llm.keys import PoolKeys
from stream2llm_bench.route.bench import Measured, percentile, report
from stream2llm_bench.route.throughput import grouped_s, routed_s, stream_bytes

ARGS = argparse.Namespace(runs=3, rate=500.0, entries=100, backlog=1_000)


def test_figures_are_medians_of_the_ratios_within_each_run(tmp_path: Path) -> None:
    measured = Measured(
        bare_p50_us=[100.0, 200.0, 100.0],
        bare_p99_us=[300.0, 300.0, 300.0],
        routed_p50_us=[200.0, 500.0, 300.0],
        routed_p99_us=[300.0, 600.0, 900.0],
        grouped_s=[1.0, 2.0, 3.0],
        routed_s=[2.0, 2.0, 4.0],
        in_flight=[3, 9, 4],
        stream_bytes=5_000.4,
    )
    found = report(measured, ARGS)
    assert found.figures == {
        "hop_ratio_p50": 2.5,
        "hop_ratio_p50_spread": [2.0, 3.0],
        "hop_ratio_p99": 2.0,
        "hop_ratio_p99_spread": [1.0, 3.0],
        "throughput_ratio": 0.75,
        "throughput_ratio_spread": [0.5, 1.0],
        "entries_in_flight": 9,
        "bytes_per_open_stream": 5_000,
        "runs": 3,
    }
    assert found.plot is not None
    found.plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1_000


@pytest.mark.parametrize(("percent", "value"), [(0, 1.0), (50, 3.0), (99, 4.0)])
def test_percentile(percent: float, value: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == value


@pytest.mark.redis
def test_backlogs_are_moved_in_full(valkey_server: Any) -> None:
    with valkey_server.client() as client:
        client.flushall()
    assert routed_s(valkey_server.url, PoolKeys("bench/test"), 1, 250) > 0
    assert grouped_s(valkey_server.url, 1, 250) > 0
    assert stream_bytes(valkey_server.url, PoolKeys("bench/memory"), 20, 2) > 2_000
