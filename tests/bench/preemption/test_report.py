from __future__ import annotations

from pathlib import Path

import pytest

from stream2llm.costprofile import ProfileKey, parse_profile
from stream2llm_bench.preemption.bench import Pooled, cost_vs_best, draw, make_report
from stream2llm_bench.preemption.replaying import Outcome
from stream2llm_bench.preemption.virtual import crossing_profile
from stream2llm_bench.reporting import write
from stream2llm_pod.profiling.crossing import crossings
from stream2llm_pod.scheduling.costs import Preemption

KEY = ProfileKey("cpu", "model", "", "float32", "auto", None, 1, 32, 2048, "0.32")


def pooled(ttft_ms: list[float], recomputed_tokens: int = 0) -> Pooled:
    made = Pooled()
    made.add(Outcome(ttft_ms, recomputed_tokens=recomputed_tokens, preemptions={"recompute": 1, "swap": 2}))
    return made


def runs(cost_ms: float) -> dict[str, Pooled]:
    return {"recompute": pooled([100.0] * 10, 5000), "swap": pooled([80.0] * 10), "cost": pooled([cost_ms] * 10, 700)}


def test_runs_are_pooled() -> None:
    made = pooled([1.0, 2.0], 10)
    made.add(Outcome([3.0], recomputed_tokens=5, preemptions={"swap": 1}))
    assert (made.ttft_ms, made.recomputed_tokens) == ([1.0, 2.0, 3.0], 15)
    assert made.preemptions == {"recompute": 1, "swap": 3}
    assert made.figures()["ttft_ms"] == {"p50": 2.0, "p95": 2.9, "p99": 2.98}


def test_cost_is_compared_with_the_better_of_the_others() -> None:
    assert cost_vs_best(runs(60.0), 99) == pytest.approx(0.75)
    assert cost_vs_best(runs(120.0), 99) == pytest.approx(1.5)


def test_the_report_has_the_documented_keys(tmp_path: Path) -> None:
    report = make_report({"short": runs(84.0), "mixed": runs(60.0)}, {"cost": pooled([5.0])}, crossing_profile(KEY))
    figures = report.figures
    assert figures["virtual"]["cost"] == {
        "ttft_ms": {"p50": 60.0, "p95": 60.0, "p99": 60.0},
        "recomputed_tokens": 700,
        "preemptions": {"recompute": 1, "swap": 2},
    }
    assert figures["virtual"]["recompute"]["ttft_ms"]["p99"] == 100.0
    assert figures["real"]["cost"]["ttft_ms"]["p50"] == 5.0
    # The worst of all workloads, not the best.
    assert figures["cost_vs_best_p99"] == 1.05
    assert figures["workloads"]["mixed"]["cost_vs_best"] == {"p50": 0.75, "p95": 0.75, "p99": 0.75}
    assert {path.suffix for path in write(report, tmp_path)} == {".json", ".txt", ".png"}
    text = (tmp_path / "preemption.txt").read_text()
    assert "mixed     cost        60.0   60.0   60.0   700                1           2" in text


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    draw({"mixed": runs(60.0)}, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_the_curves_cross_inside_the_lengths_of_the_prompts() -> None:
    profile = crossing_profile(KEY)
    assert parse_profile(profile.to_json()) == profile
    (_, first), (at, then) = crossings(profile)
    assert (first, then) == (Preemption.RECOMPUTE, Preemption.SWAP)
    assert 1200 < at < 5000
    (_, first), (exchanged_at, then) = crossings(crossing_profile(KEY, exchanged=True))
    assert (first, then) == (Preemption.SWAP, Preemption.RECOMPUTE)
    assert exchanged_at == pytest.approx(at, abs=2)
