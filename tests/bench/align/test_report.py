"""The report of `bench align`, and the streams that it compares."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream2llm_bench.align.bench import Pair, draw_streams, make_report
from stream2llm_bench.align.fitting import Step
from stream2llm_bench.reporting import write


def test_errors_are_relative_to_the_real_engine_stream_by_stream() -> None:
    pair = Pair("auto", [[1.0, 2.0]], [[1.1, 1.0]], 0.0)
    assert pair.mape == pair.mape_of_one_round == pytest.approx((0.1 + 0.5) / 2)
    assert pair.mape_real is None
    assert pair.bias == pytest.approx(-0.3)


def test_a_streams_time_is_the_median_of_its_rounds() -> None:
    pair = Pair("auto", [[1.0], [8.0], [2.0]], [[1.5], [2.0], [2.5]], 0.0)
    assert (pair.real_s, pair.simulated_s) == ([2.0], [2.0])
    assert pair.mape == 0.0
    assert pair.mape_of_one_round == pytest.approx((0.5 + 0.75 + 0.25) / 3)
    assert pair.mape_real == pytest.approx((7.0 + 0.75) / 2)


def test_the_report_has_the_documented_keys(tmp_path: Path) -> None:
    pairs = [
        Pair("auto", [[1.0, 2.0], [1.0, 2.0]], [[1.1, 2.2], [1.1, 2.2]], -0.02),
        Pair("waiting", [[1.0, 2.0], [1.1, 2.2]], [[1.365, 2.73], [1.365, 2.73]], 0.1),
    ]
    calibrated = [[Step(((0, 100),), ms)] * 3 for ms in (20.0, 22.0)]
    report = make_report(pairs, calibrated)
    assert report.figures["mape_ttft"] == pytest.approx(0.2)
    assert report.figures["mape_repeat"] == pytest.approx(0.05)
    assert report.figures["rounds"] == 2
    assert report.figures["drift"] == pytest.approx(1.1)
    of_auto = {"mape": 0.1, "bias": 0.1, "mape_of_one_round": 0.1, "mape_repeat": 0.0, "step_error": -0.02}
    assert report.figures["ways"]["auto"] == of_auto | {"requests": 2}
    assert {path.suffix for path in write(report, tmp_path)} == {".json", ".txt", ".png"}


def test_the_streams_are_crawls_and_searches_that_a_small_model_holds() -> None:
    streams = draw_streams(24, 0.2, 42)
    assert len(streams) == 24
    assert {"crawler" in stream.name for stream in streams} == {True, False}
    assert max(stream.final_tokens for stream in streams) < 4000
    assert streams == draw_streams(24, 0.2, 42)
