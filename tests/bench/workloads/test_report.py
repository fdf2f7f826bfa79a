from __future__ import annotations

from pathlib import Path

from stream2llm_bench.reporting import write
from stream2llm_bench.workloads.bench import make_report
from stream2llm_bench.workloads.checking import Compared

MET = Compared("crawler", "tokens a query", "p50", 5800.0, 5749.0)
MISSED = Compared("crawler", "tokens a query", "p95", 32000.0, 28372.0)
ASSUMED = Compared("crawler", "tokens a query", "p99", 45000.0, None)


def test_the_report_tells_met_missed_and_assumed_apart(tmp_path: Path) -> None:
    report = make_report({"crawler": [MET, ASSUMED]})
    assert report.figures["within_tolerance"] is True
    assert report.figures["largest_error"] == 0.0089
    assert make_report({"crawler": [MET, MISSED]}).figures["within_tolerance"] is False
    rows = list(report.tables[0].rows)
    assert rows[0] == ("crawler", "tokens a query", "p50", "5,800.00", "5,749.00", "+0.9%")
    assert rows[1] == ("crawler", "tokens a query", "p99", "45,000.00", "assumed", "")
    assert {path.suffix for path in write(report, tmp_path)} == {".json", ".txt", ".png"}
