"""The report of `bench peers`."""

from __future__ import annotations

from pathlib import Path

from stream2llm_bench.peers.bench import OURS, SESSIONS, WAITING, make_report
from stream2llm_bench.reporting import write
from stream2llm_bench.simulating.outcome import Outcome


def test_a_way_that_leaves_streams_unanswered_has_no_ratio_there(tmp_path: Path) -> None:
    def outcome(*ttft_s: float) -> Outcome:
        return Outcome(list(ttft_s), [1 + value for value in ttft_s], ["default"] * len(ttft_s))

    left = outcome(0.1, 0.2, float("inf"))
    left.unanswered = 1
    report = make_report({"short": {OURS: outcome(0.1, 0.1, 0.1), WAITING: outcome(0.4, 0.4, 0.4), SESSIONS: left}})
    case = report.figures["cases"]["short"]
    assert case[OURS]["ratio_vs_waiting"] == {"p50": 4.0, "p95": 4.0, "p99": 4.0}
    assert case[SESSIONS]["ratio_vs_waiting"] == {"p50": 2.0, "p95": None, "p99": None}
    assert case[SESSIONS]["unanswered"] == 1
    assert report.tables[0].rows[2][2:6] == ("200", "never", "never", "1.2")
    assert {path.suffix for path in write(report, tmp_path)} == {".json", ".txt", ".png"}
