"""The published figures as they are read, and the comparison with ours."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from stream2llm.commands.main import main
from stream2llm_bench.paper.bench import ARTIFACTS, OURS, make_report, simulate
from stream2llm_bench.paper.comparing import Cell, cells_of, rank_correlation
from stream2llm_bench.paper.published import NON_STREAMING, STREAMING, Condition, load_preemptions, load_published
from stream2llm_bench.reporting import write
from stream2llm_bench.simulating.engine import Setting
from stream2llm_bench.simulating.keeping import KeptRuns, Work
from stream2llm_bench.simulating.outcome import Outcome

FOUR = Condition("h200-tp2", "crawler", 4.0, 1.0, "cost")
STRETCHED = Condition("h200-tp2", "anns", 2.0, 30.0, "swap")


def test_all_published_experiments_are_read() -> None:
    rows = load_published()
    assert len(rows) == 22
    assert sum(condition.pressure for condition in rows) == 6
    assert sum(len(row.ratios) for row in rows.values()) == 396
    assert {condition.hardware for condition in rows} == {"h200-tp2", "h100-tp2"}
    assert rows[FOUR].baselines_s[NON_STREAMING] == {"p50": 0.7521, "p95": 4.3418, "p99": 5.4011}
    assert rows[FOUR].ratios["fcfs", STREAMING, "p95"] == 3.16
    assert rows[FOUR].ratios["mcps", NON_STREAMING, "p99"] == 1.042
    assert rows[STRETCHED].ratios["lcas", STREAMING, "p50"] == 0.718


@pytest.mark.parametrize("condition", load_published())
def test_published_ratios_agree_with_one_another(condition: Condition) -> None:
    """Both baselines ÷ one policy: the quotient of the two is that of the baselines. So a misread figure shows."""
    row = load_published()[condition]
    for policy in ("fcfs", "lcas", "mcps"):
        for percentile in ("p50", "p95", "p99"):
            by_ratios = row.ratios[policy, NON_STREAMING, percentile] / row.ratios[policy, STREAMING, percentile]
            by_times = row.baselines_s[NON_STREAMING][percentile] / row.baselines_s[STREAMING][percentile]
            assert by_ratios == pytest.approx(by_times, rel=0.02)


def exact() -> dict[str, dict[str, float]]:
    """The times that give the published ratios against default streaming."""
    row = load_published()[FOUR]
    times = dict(row.baselines_s)
    for policy in ("fcfs", "lcas", "mcps"):
        times[policy] = {
            name: row.baselines_s[STREAMING][name] / row.ratios[policy, STREAMING, name]
            for name in ("p50", "p95", "p99")
        }
    return times


def test_the_published_times_themselves_have_no_error() -> None:
    cells = cells_of(FOUR, load_published()[FOUR], exact())
    assert len(cells) == 18
    assert max(abs(cell.error) for cell in cells) < 0.01
    assert rank_correlation(cells) > 0.99


def test_an_error_is_relative_to_what_is_published() -> None:
    cell = Cell(FOUR, "fcfs", STREAMING, "p95", 2.0, 1.0)
    assert (cell.error, cell.within_third) == (-0.5, False)
    assert Cell(FOUR, "fcfs", STREAMING, "p95", 3.0, 4.0).within_third
    assert not Cell(FOUR, "fcfs", STREAMING, "p95", 3.0, 4.01).within_third


def test_ranks_are_correlated_not_values() -> None:
    def cells(ours: list[float]) -> list[Cell]:
        return [Cell(FOUR, "fcfs", STREAMING, "p95", float(i), value) for i, value in enumerate(ours, start=1)]

    assert rank_correlation(cells([1, 10, 100])) == pytest.approx(1.0)
    assert rank_correlation(cells([3, 2, 1])) == pytest.approx(-1.0)
    assert rank_correlation(cells([5, 5, 9])) == pytest.approx(math.sqrt(3) / 2)
    assert math.isnan(rank_correlation(cells([1])))
    assert math.isnan(rank_correlation(cells([2, 2])))


def test_the_report_has_the_documented_keys(tmp_path: Path) -> None:
    times = exact()
    times["mcps"] = {name: 2 * value for name, value in times["mcps"].items()}
    report = make_report(
        {FOUR: times, STRETCHED: times}, 100, 42, {STRETCHED: {name: {"swap": 2, "recompute": 1} for name in times}}
    )
    assert report.figures.keys() >= {"cells", "within_third", "rank_correlation", "preemptions"}
    assert report.figures["preemptions"][0]["ours"]["fcfs"] == {"swap": 2, "recompute": 1}
    rows = next(table for table in report.tables if table.title.startswith("Preemptions")).rows
    assert rows == [("h200-tp2 anns 2/s delays x30, swap", "1 + 2 / 35", "1 + 2 / 50", "1 + 2 / 48", "1 + 2 / 40")]
    assert report.figures["cells"][0].keys() == {
        *("hardware", "workload", "qps", "delay", "preemption", "policy", "baseline", "percentile"),
        *("published", "ours", "error"),
    }
    assert {path.suffix for path in write(report, tmp_path)} == {".json", ".txt", ".png"}
    assert OURS.keys() == times.keys()


class Recorded(KeptRuns):
    """Runs nothing, and remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__(None, lambda _: None)
        self.asked: list[tuple[Work, Setting]] = []

    def run(self, work: Work, setting: Setting) -> Outcome:
        self.asked.append((work, setting))
        return Outcome([1.0])


def test_stretched_delays_are_for_the_artifacts_schedulers_on_its_hardware() -> None:
    recorded = Recorded()
    simulate([STRETCHED], None, None, 42, recorded)
    assert [(setting.policy, setting.streaming) for _, setting in recorded.asked] == list(ARTIFACTS.values())
    assert {work.requests for work, _ in recorded.asked} == {500}
    assert {(setting.hardware.name, setting.preemption) for _, setting in recorded.asked} == {
        ("h200-tp2-artifact", "swap")
    }


def test_published_preemptions_are_read() -> None:
    counts = load_preemptions()
    assert len(counts) == 6
    assert counts["crawler", "recompute"] == {STREAMING: 2448, "fcfs": 3552, "lcas": 12564, "mcps": 3316}


@pytest.mark.simulated
def test_what_nobody_published_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "paper", "--hardware", "h100-tp2", "--load", "pressure"]) == 1
    assert "no published experiment has this hardware, workload and load together" in capsys.readouterr().err


def test_our_scheduler_can_be_asked_for() -> None:
    recorded = Recorded()
    simulate([STRETCHED, FOUR], None, 100, 42, recorded, our_scheduler=True)
    asked = [(setting.policy, setting.streaming, work.requests) for work, setting in recorded.asked]
    assert asked == [(*value, requests) for requests in (100, 4309) for value in OURS.values()]
