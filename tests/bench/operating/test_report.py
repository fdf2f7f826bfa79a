from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from stream2llm_bench.operating.bench import Measured, OperatorBench, report
from stream2llm_bench.operating.cluster import Asked, count

ARGUMENTS = argparse.Namespace(nodes=500, resources=200, pairs=3)
OURS = Measured([0.6, 0.4, 0.5], [0.5, 0.7, 0.6], 120.0, Asked(200, 0), 200)
BARE = Measured([0.2, 0.2, 0.2], [0.3, 0.3, 0.3], 80.0, Asked(0, 50), 200)


def event(user: str, verb: str) -> str:
    return json.dumps({"user": {"username": user}, "verb": verb, "objectRef": {"resource": "services"}})


def test_requests_are_counted_by_user_and_watches_are_not() -> None:
    lines = [event("ours", verb) for verb in ("get", "list", "watch", "patch", "create", "update", "delete")]
    assert count([*lines, event("ours-too", "get"), event("other", "patch")], "ours") == Asked(2, 4)
    assert Asked(5, 4).since(Asked(2, 4)) == Asked(3, 0)


def test_figures_are_medians_and_requests_per_pass() -> None:
    figures = report(OURS, BARE, ARGUMENTS).figures
    assert figures["create_to_applied_s"] == 0.5
    assert figures["create_to_applied_s_crowded"] == 0.6
    assert figures["writes_per_steady_reconcile"] == 0.0
    assert figures["requests_per_steady_reconcile"] == 1.0
    assert figures["rss_mib_at_200"] == 120.0
    assert figures["bare"]["writes_per_steady_reconcile"] == 0.25
    assert figures["bare"]["rss_mib_at_200"] == 80.0
    assert (figures["create_ratio"], figures["create_ratio_spread"]) == (2.5, [2.0, 3.0])
    assert json.loads(json.dumps(figures)) == figures


def test_table_and_plot_say_both(tmp_path: Path) -> None:
    made = report(OURS, BARE, ARGUMENTS)
    (table,) = made.tables
    assert table.columns == ("", "ours", "bare")
    assert ("memory with 200 resources, MiB", "120", "80") in table.rows
    assert made.plot is not None
    made.plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"nodes": 0}, "--nodes must be at least 1, not 0"),
        ({"resources": 2}, "--resources must be at least --pairs \\(3\\), not 2"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, int], words: str) -> None:
    wrong = argparse.Namespace(**{**vars(ARGUMENTS), **arguments})
    with pytest.raises(ValueError, match=words):
        OperatorBench().run(wrong, lambda line: None)
