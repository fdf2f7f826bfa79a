"""The bench's signals and the chart's rules give the same on the same series."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import programs
import pytest
import yaml

from stream2llm_bench.autoscale.serving import Fleet, Hardware
from stream2llm_bench.autoscale.signals import PodSample, Signals
from stream2llm_bench.autoscale.traffic import Traffic

POOL = 'namespace="n",pool="p"'
CHART = Path(__file__).parents[3] / "helm" / "stream2llm"
POD = PodSample("a", 0.0, False, 0.0, 0, 3.0, 0.5, 4)


def fed(*scrapes: tuple[float, list[PodSample]]) -> Signals:
    signals = Signals()
    for now_s, samples in scrapes:
        signals.scraped(now_s, samples)
    return signals


def test_nothing_is_known_without_pods() -> None:
    assert (Signals().backlog_s(), Signals().preemption()) == (None, None)
    assert (fed((0.0, [])).kv_usage(), fed((0.0, [])).preemption()) == (None, None)


def test_loads_are_sums() -> None:
    signals = fed((0.0, [POD, replace(POD, name="b", backlog_s=1.0)]))
    assert (signals.backlog_s(), signals.kv_usage()) == (4.0, 1.0)


def test_half_of_the_mature_pods_decide() -> None:
    def scrape(now_s: float, waste_s: float) -> tuple[float, list[PodSample]]:
        hot = replace(POD, waste_total_s=waste_s, preemptions_total=int(waste_s))
        return now_s, [hot, replace(POD, name="b")]

    assert fed(scrape(100.0, 0.0)).preemption() == 1
    assert fed(scrape(200.0, 0.0), scrape(300.0, 0.0)).preemption() == 0.0
    assert fed(scrape(200.0, 0.0), scrape(300.0, 3.0)).preemption() == 1.25
    assert fed(scrape(200.0, 0.0), scrape(300.0, 1.0)).preemption() == 1.0


@pytest.mark.kubernetes
def test_the_rules_say_the_same(promtool: str, tmp_path: Path) -> None:
    # Two pods too small for what comes, then three more.
    streams = list(reversed(replace(Traffic(), night=1.0, peak_per_s=1.2).draw(3, 0.6)))
    fleet, signals = Fleet(replace(Hardware(), kv_tokens=70_000), 2), Signals()
    scrapes: list[dict[str, PodSample]] = []
    expected: list[float | None] = []
    for second in range(2100):
        if second == 1200:
            fleet.scale(second, 5)
        arriving = []
        while streams and streams[-1].start_s <= second:
            arriving.append(streams.pop())
        fleet.step(second, arriving)
        if second % 15 == 0:
            samples = [pod.sample(second) for pod in fleet.ready(second)]
            signals.scraped(second, samples)
            scrapes.append({sample.name: sample for sample in samples})
            expected.append(signals.preemption())
    assert {1.25, 1.0} <= set(expected)

    def series(name: str, figure: object, **labels: str) -> dict[str, str]:
        assert callable(figure)
        found = {}
        for pod in sorted({pod for scrape in scrapes for pod in scrape}):
            values = " ".join(f"{figure(scrape[pod]):.9g}" if pod in scrape else "_" for scrape in scrapes)
            extra = "".join(f',{key}="{value}"' for key, value in labels.items())
            found[f'{name}{{{POOL},pod="{pod}"{extra}}}'] = values
        return found

    memory = {"cause": "memory", "kind": "recompute"}
    # At 0 the series says "not ready yet"; the model's first pods are ready from the start.
    given = series("stream2llm_pod_ready_timestamp_seconds", lambda sample: max(sample.ready_since_s, 0.001))
    given |= series("stream2llm_pod_draining", lambda sample: int(sample.draining))
    given |= series("stream2llm_preemption_cost_seconds_total", lambda sample: sample.waste_total_s, **memory)
    given |= series("stream2llm_preemptions_total", lambda sample: sample.preemptions_total, **memory)
    command = [str(programs.ensure("helm")["helm"]), "template", "s2l", str(CHART)]
    command += ["--set", "monitoring.rules.enabled=true", "-s", "templates/recording-rules.yaml"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": yaml.safe_load(text)["spec"]["groups"]}))
    name = "stream2llm:pool_preemption_signal"
    checks = [
        {
            "expr": name,
            "eval_time": f"{15 * i}s",
            "exp_samples": [] if value is None else [{"labels": f"{name}{{{POOL}}}", "value": value}],
        }
        # `increase` extrapolates to the whole window and `rate` over its edges, so the first minutes differ.
        for i, value in enumerate(expected)
        if i >= 60 and i % 4 == 0
    ]
    test = {
        "interval": "15s",
        "input_series": [{"series": key, "values": values} for key, values in given.items()],
        "promql_expr_test": checks,
    }
    path = tmp_path / "test.yaml"
    document = {"rule_files": [str(rules)], "evaluation_interval": "15s", "tests": [test]}
    path.write_text(yaml.safe_dump(document))
    result = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
