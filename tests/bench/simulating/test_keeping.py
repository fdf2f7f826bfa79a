"""Runs that are kept, and what tells two of them apart."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from stream2llm_bench.failing import Unavailable
from stream2llm_bench.simulating import keeping
from stream2llm_bench.simulating.engine import Setting
from stream2llm_bench.simulating.hardware import find_hardware
from stream2llm_bench.simulating.keeping import KeptRuns, Work, at_most
from stream2llm_bench.simulating.outcome import Outcome
from stream2llm_bench.workloads import anns

WORK = Work("crawler", 4.0, 3, 1.0, 42)
SETTING = Setting(find_hardware("h200-tp2"), policy="fcfs")
OUTCOME = Outcome([0.1, 0.2, 0.3], [1.0, 2.0, 3.0], ["default"] * 3, 4.0, 5, {"recompute": 1})


def keep(folder: Path, code: str) -> None:
    name = keeping._name(WORK, SETTING, WORK.draw())
    (folder / f"{name}.json").write_text(json.dumps({"code": code, "outcome": asdict(OUTCOME)}))


def test_a_kept_run_is_read_and_not_run_again(tmp_path: Path) -> None:
    keep(tmp_path, keeping._code())
    said: list[str] = []
    kept = KeptRuns(tmp_path, said.append)
    assert kept.run(WORK, SETTING) == OUTCOME
    assert (said, kept.notes()) == ([], [])


def test_a_run_of_other_code_is_told(tmp_path: Path) -> None:
    keep(tmp_path, "other")
    kept = KeptRuns(tmp_path, lambda _: None)
    kept.run(WORK, SETTING)
    assert kept.notes() == ["1 runs were kept from before the scheduler's code was changed."]


@pytest.mark.parametrize(
    ("work", "setting"),
    [
        (replace(WORK, seed=43), SETTING),
        (replace(WORK, qps=2.0), SETTING),
        (replace(WORK, delay_multiplier=10.0), SETTING),
        (WORK, replace(SETTING, policy="auto")),
        (WORK, replace(SETTING, streaming=False)),
        (WORK, replace(SETTING, preemption="swap")),
        (WORK, replace(SETTING, kv_tokens=1000)),
        (WORK, replace(SETTING, hardware=find_hardware("h100-tp2"))),
        (WORK, replace(SETTING, hardware=replace(SETTING.hardware, step_ms=9.0))),
    ],
)
def test_whatever_changes_a_run_changes_its_name(work: Work, setting: Setting) -> None:
    assert keeping._name(work, setting, work.draw()) != keeping._name(WORK, SETTING, WORK.draw())


def test_assumptions_change_the_streams_and_so_the_name() -> None:
    searching = Work("anns", 1.0, 5, 1.0, 42)
    assumed = replace(searching, assumptions=anns.Assumptions(kept_exponent=1000.0))
    assert keeping._name(searching, SETTING, searching.draw()) != keeping._name(assumed, SETTING, assumed.draw())
    assert [stream.starts_s for stream in searching.draw()] == [stream.starts_s for stream in assumed.draw()]


def test_no_more_than_published() -> None:
    assert (at_most("crawler", None), at_most("anns", 9000), at_most("anns", 9)) == (4309, 500, 9)


def test_the_artifacts_schedulers_need_no_engine(tmp_path: Path) -> None:
    said: list[str] = []
    setting = replace(SETTING, policy="artifact-lcas")
    runs = [KeptRuns(tmp_path, said.append, engine_only=True) for _ in range(2)]
    outcomes = [kept.run(WORK, setting) for kept in runs]
    assert [kept._engine for kept in runs] == [None, None]
    assert said == ["crawler 4/s, 3 requests, seed 42: artifact-lcas, recompute"]
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0].ttft_s) == WORK.requests
    (kept,) = tmp_path.iterdir()
    assert kept.name.startswith("crawler-4-x1-n3-s42-h200-tp2-artifact-lcas-recompute-")


def test_a_folder_that_cannot_be_made_is_told_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match=r"--runs .*/file/runs: Not a directory"):
        KeptRuns(tmp_path / "file" / "runs", lambda _: None)
