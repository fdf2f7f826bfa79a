"""The figures of the report are those of the runs."""

from __future__ import annotations

from pathlib import Path

from stream2llm_bench.tenants.bench import Pooled, draw, make_report

RESULTS = {
    "whole prompts": {"srpf": Pooled([100.0, 200.0], [200.0, 400.0], [0.9, 1.0]), "fcfs": Pooled([3.0], [2.0], [1.0])},
}


def test_ratios_and_the_worst_of_them() -> None:
    figures = make_report(RESULTS).figures
    assert figures["worst_p95_ratio"] == 1.5
    assert figures["scenarios"]["whole prompts"]["srpf"] == {
        "flooded_ms": {"p50": 150.0, "p95": 195.0},
        "alone_ms": {"p50": 300.0, "p95": 390.0},
        "ratio": {"p50": 0.5, "p95": 0.5},
        "used": 0.95,
    }


def test_the_plot_is_written(tmp_path: Path) -> None:
    draw(RESULTS, tmp_path / "tenants.png")
    assert (tmp_path / "tenants.png").stat().st_size > 1000
