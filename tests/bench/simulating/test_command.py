"""`stream2llm simulate`: its output, and what it says to bad arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stream2llm.commands.main import main
from stream2llm_bench.simulating.outcome import Outcome, summary_ms

KEYS = {
    "ttft_ms",
    "open_to_first_token_ms",
    "trace_completion_s",
    "preemptions",
    "recomputed_tokens",
    "invalidated_tokens",
    "requests",
    "steps",
    "wall_s",
}


def test_percentiles_are_of_all_streams() -> None:
    summary = summary_ms([i / 1e3 for i in range(1, 1001)])
    assert (summary["p50"], summary["p95"], summary["max"], summary["mean"]) == (500.5, 950.05, 1000.0, 500.5)
    assert (summary["p99"], summary["p999"]) == (990.01, 999.001)


def test_the_summary_has_the_documented_keys() -> None:
    outcome = Outcome([0.1], [1.0], ["default"], 2.0, 3, {"swap": 1, "recompute": 0})
    assert outcome.figures().keys() >= KEYS
    assert outcome.figures()["preemptions"] == {"recompute": 0, "swap": 1}
    assert "tenants" not in outcome.figures()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--qps", "0"], "argument --qps: must be a number above 0, not 0"),
        (["--qps", "many"], "argument --qps: must be a number above 0, not many"),
        (["--requests", "0"], "argument --requests: must be a whole number of 1 or more, not 0"),
        (["--seed", "-1"], "argument --seed: must be a whole number from 0 to 4294967295, not -1"),
        (["--delay-multiplier", "-2"], "argument --delay-multiplier: must be a number above 0, not -2"),
        (["--workload", "web"], "argument --workload: invalid choice: 'web'"),
    ],
)
def test_arguments_that_are_none(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["simulate", *arguments])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hardware", "h300"], "hardware 'h300' is not known; choose one of h200-tp2"),
        (["--scenario", "nowhere"], "scenario 'nowhere' is none of anns-pressure, bursty"),
        (["--trace", "/nowhere"], "no file query_<id>.csv with pages in it"),
        (["--trace", "/nowhere", "--scenario", "mixed"], "--trace and --scenario exclude each other"),
    ],
)
def test_names_that_are_not_known(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"stream2llm simulate: {message}") or message in captured.err


def test_scenarios_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--scenario", "list"]) == 0
    assert "\nmixed " in capsys.readouterr().out


@pytest.mark.simulated
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "fifo"], "--policy 'fifo' is not known; choose one of default, fcfs"),
        (["--preemption", "drop"], "--preemption 'drop' is not known; choose one of cost, recompute, swap"),
    ],
)
def test_policies_that_are_not_known(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--requests", "1", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.simulated
def test_json_is_all_that_stdout_gets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "query_1.csv").write_text(
        "type,query,content,startTime,endTime\n"
        "tavily_search,q,,0,1\n"
        f"page_scrape,q,{'x' * 440},1,2\n"
        f"page_scrape,q,{'y' * 4400},2,4\n"
    )
    arguments = ["simulate", "--trace", str(tmp_path), "--policy", "fcfs", "--preemption", "cost", "--json"]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    figures = json.loads(captured.out)
    assert figures.keys() >= KEYS
    # The last page of 1,000 tokens, what stands behind it, and its share of attention.
    assert figures["ttft_ms"]["p50"] == pytest.approx(8 + 12.5 * 1.04 + 0.23 * (1.14**2 - 0.1**2), rel=0.01)
    assert figures["requests"] == 1


@pytest.mark.simulated
def test_the_artifacts_schedulers_are_policies_here(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", "--policy", "artifact-mcps", "--preemption", "swap", "--requests", "20", "--qps", "4"]
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["requests"] == 20
    assert "vLLM" not in captured.err
    assert main([*arguments, "--scenario", "multi-tenant"]) == 2
    assert "the artifact's schedulers know no tenants" in capsys.readouterr().err
