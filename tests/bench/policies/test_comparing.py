"""Verdicts on policies, and the report of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream2llm_bench.policies.bench import BOUND, WAITING, make_report
from stream2llm_bench.policies.comparing import Runs, judge
from stream2llm_bench.reporting import write


def runs(*ttft_s: float, completion_s: float = 100.0, seeds: int = 1) -> Runs:
    made = Runs()
    for _ in range(seeds):
        made.add(list(ttft_s), completion_s)
    return made


def test_times_are_means_over_seeds_and_the_longest_is_of_all() -> None:
    made = runs(1.0, 2.0, 3.0)
    made.add([3.0, 4.0, 9.0], 110.0)
    assert made.mean_ms("p50") == pytest.approx(3000.0)
    assert made.figures()["longest_ms"] == 9000.0
    assert made.figures()["trace_completion_s"] == 105.0


def test_each_percentile_is_compared_with_the_best_rival_there() -> None:
    # fcfs has the better median, mcps the better tail.
    of_case = {"auto": runs(1.0, 1.0, 5.0), "fcfs": runs(0.5, 0.5, 20.0), "mcps": runs(2.0, 2.0, 4.0)}
    verdict = judge("auto", of_case)
    assert dict(verdict.best) == {"p50": "fcfs", "p95": "mcps", "p99": "mcps"}
    assert verdict.against_best["p50"] == pytest.approx(2.0)
    assert verdict.against_best["p99"] == pytest.approx(4.92 / 3.96)
    assert not verdict.at_least_as_good


@pytest.mark.parametrize(
    ("time_s", "completion_s", "good"),
    [(1.03, 100.0, True), (1.04, 100.0, False), (0.5, 102.0, False), (1.0, 101.0, True)],
)
def test_within_three_percent_counts_as_good_and_throughput_within_one(
    time_s: float, completion_s: float, good: bool
) -> None:
    of_case = {"auto": runs(time_s, completion_s=completion_s), "fcfs": runs(1.0)}
    assert judge("auto", of_case).at_least_as_good is good


@pytest.mark.parametrize("bad", ["random", "reverse"])
def test_a_bad_policy_in_our_place_does_not_pass(bad: str) -> None:
    """Figures of `stream2llm simulate --qps 4 --requests 1500`; the verdict is one that can fail."""
    p95_s = {"random": 4.058, "reverse": 14.375}[bad]
    verdict = judge("auto", {"auto": runs(0.07, p95_s), "fcfs": runs(0.07, 0.669)})
    assert not verdict.at_least_as_good
    assert verdict.against_best["p99"] > 5


def test_our_own_policies_are_no_rivals() -> None:
    with pytest.raises(ValueError, match="none of fcfs, lcas"):
        judge("auto", {"auto": runs(1.0), "srpf": runs(1.0)})


def test_the_report_has_times_verdicts_and_a_picture(tmp_path: Path) -> None:
    of_case = {"auto": runs(1.0), "fcfs": runs(2.0), WAITING: runs(4.0), BOUND: runs(0.5)}
    ways = {"cost": runs(1.0), "recompute": runs(1.25), "swap": runs(2.0)}
    report = make_report({"crawler 4/s": of_case}, 1, "cost", {"crawler pressure": ways}, ["a note"])
    case = report.figures["cases"]["crawler 4/s"]
    assert case["verdicts"]["auto"]["against_best"] == {"p50": 0.5, "p95": 0.5, "p99": 0.5}
    assert case["verdicts"]["auto"]["at_least_as_good"] is True
    assert next(iter(report.tables[0].rows))[-1] == "2.00 / 2.00 / 2.00"
    assert report.figures["preemption_cases"]["crawler pressure"]["cost_against_better"]["against_best"]["p99"] == 0.8
    assert report.notes == ["a note"]
    assert {path.suffix for path in write(report, tmp_path)} == {".json", ".txt", ".png"}
