"""The chart's recording rules and alerts, run by promtool: which signal each situation gives, and when."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import programs
import pytest
import yaml

pytestmark = pytest.mark.kubernetes

CHART = Path(__file__).resolve().parent.parent.parent / "helm" / "stream2llm"
STEP_S = 15.0
Series = dict[str, str]
POOL = 'namespace="n",pool="p"'


def rules(folder: Path, speed: int = 1) -> Path:
    """The rendered rules as a plain Prometheus reads them, with all windows `speed` times shorter."""
    values = ["monitoring.rules.enabled=true", "monitoring.alerts.enabled=true"]
    if speed != 1:
        values += [f"monitoring.rules.windows.matureSeconds={180 // speed}"]
        values += [f"monitoring.rules.windows.rate={120 // speed}s", f"monitoring.rules.windows.hold={600 // speed}s"]
        values += [f"monitoring.rules.interval={15_000 // speed}ms"]
    helm = str(programs.ensure("helm")["helm"])
    command = [helm, "template", "s2l", str(CHART), *(part for value in values for part in ("--set", value))]
    command += ["-s", "templates/recording-rules.yaml", "-s", "templates/alerts.yaml"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    groups = [group for manifest in yaml.safe_load_all(text) if manifest for group in manifest["spec"]["groups"]]
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": groups}))
    return path


def check(
    promtool: str,
    folder: Path,
    series: Mapping[str, str],
    expected: Sequence[tuple[str, float, Mapping[str, float]]] = (),
    *,
    speed: int = 1,
) -> None:
    """expected: (expression, minutes, labels → value). Series have a sample every 15 s, divided by `speed`."""

    def when(minutes: float) -> str:
        return f"{int(minutes * 60_000 / speed)}ms"

    test = {
        "interval": f"{int(STEP_S * 1000 / speed)}ms",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": expression,
                "eval_time": when(minutes),
                "exp_samples": [{"labels": labels, "value": value} for labels, value in samples.items()],
            }
            for expression, minutes, samples in expected
        ],
    }
    document = {
        "rule_files": [str(rules(folder, speed))],
        "evaluation_interval": f"{int(STEP_S * 1000 / speed)}ms",
        "tests": [test],
    }
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump(document))
    result = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def of_pod(pod: str, **more: str) -> str:
    return ",".join([POOL, f'pod="{pod}"', *(f'{name}="{value}"' for name, value in more.items())])


def a_pod(name: str, *, cost: str = "0x200", preemptions: str = "0x200", since: str = "0.001x200") -> Series:
    """A pod that is ready from the start. cost: seconds that memory preemptions have taken, `preemptions` how many."""
    memory = of_pod(name, cause="memory", kind="recompute")
    return {
        f"stream2llm_pod_ready_timestamp_seconds{{{of_pod(name)}}}": since,
        f"stream2llm_pod_draining{{{of_pod(name)}}}": "0x200",
        f"stream2llm_preemption_cost_seconds_total{{{memory}}}": cost,
        f"stream2llm_preemptions_total{{{memory}}}": preemptions,
        f"stream2llm_kv_cache_usage_ratio{{{of_pod(name)}}}": "0.5x200",
        f"stream2llm_prefill_backlog_seconds{{{of_pod(name)}}}": "3x200",
        f"stream2llm_open_streams{{{of_pod(name, state='open')}}}": "4x200",
        f"stream2llm_open_streams{{{of_pod(name, state='answering')}}}": "1x200",
    }


def signal(value: float | None) -> dict[str, float]:
    return {} if value is None else {f"stream2llm:pool_preemption_signal{{{POOL}}}": value}


SIGNAL = "stream2llm:pool_preemption_signal"


def hot(speed: int) -> Series:
    """Nothing for ten minutes, then a second lost every 15 s for five, then nothing."""
    return {"cost": f"0x40 0+{1 / speed:g}x20 {20 / speed:g}x140", "preemptions": "0x40 0+1x20 20x140"}


@pytest.mark.parametrize("speed", [1, 10])
def test_half_of_the_pods_wasting_time_grow_then_hold_then_let_go(promtool: str, tmp_path: Path, speed: int) -> None:
    """Shrinking every window in proportion shrinks the answer in proportion: short runs prove something."""
    series = {**a_pod("a", **hot(speed)), **a_pod("b")}
    # Too young to shrink, calm, wasting, held by the last preemption, free again.
    at: dict[float, float | None] = {2: 1, 9: 0, 13: 1.25, 22: 1, 28: 0}
    expected = [(SIGNAL, minutes, signal(value)) for minutes, value in at.items()]
    check(promtool, tmp_path, series, expected, speed=speed)


def test_one_hot_pod_of_three_is_a_matter_of_placement(promtool: str, tmp_path: Path) -> None:
    series = {**a_pod("a", cost="0+1x200", preemptions="0+1x200"), **a_pod("b"), **a_pod("c")}
    check(promtool, tmp_path, series, [(SIGNAL, 13, signal(1))])


def test_a_pod_that_drains_or_has_just_come_has_no_say(promtool: str, tmp_path: Path) -> None:
    wasting = {"cost": "0+1x200", "preemptions": "0+1x200"}
    draining = a_pod("b", **wasting)
    draining[f"stream2llm_pod_draining{{{of_pod('b')}}}"] = "1x200"
    # A minute old at minute 13.
    young = a_pod("c", **wasting, since="720x200")
    check(promtool, tmp_path, {**a_pod("a"), **draining, **young}, [(SIGNAL, 13, signal(1))])


def test_the_resources_own_target_counts(promtool: str, tmp_path: Path) -> None:
    series = a_pod("a", cost="0+1x200", preemptions="0+1x200")
    target = f"stream2llm_pool_preemption_waste_target_ratio{{{POOL}}}"
    # A second in 15 is 6.7 %.
    check(promtool, tmp_path, {**series, target: "0.06x200"}, [(SIGNAL, 13, signal(1.25))])
    check(promtool, tmp_path, {**series, target: "0.07x200"}, [(SIGNAL, 13, signal(1))])


def test_preemptions_by_policy_do_not_count(promtool: str, tmp_path: Path) -> None:
    series = a_pod("a")
    by_policy = of_pod("a", cause="policy", kind="recompute")
    series[f"stream2llm_preemption_cost_seconds_total{{{by_policy}}}"] = "0+5x200"
    series[f"stream2llm_preemptions_total{{{by_policy}}}"] = "0+5x200"
    check(promtool, tmp_path, series, [(SIGNAL, 13, signal(0))])


def test_loads_are_sums_corrected_for_pods_that_were_not_read(promtool: str, tmp_path: Path) -> None:
    series = {**a_pod("a"), **a_pod("b")}
    backlog, kv = "stream2llm:pool_prefill_backlog_seconds", "stream2llm:pool_kv_cache_usage"
    check(promtool, tmp_path, series, [(backlog, 13, {f"{backlog}{{{POOL}}}": 6}), (kv, 13, {f"{kv}{{{POOL}}}": 1})])
    ready = f"stream2llm_pool_ready_replicas{{{POOL}}}"
    check(promtool, tmp_path, {**series, ready: "3x200"}, [(backlog, 13, {f"{backlog}{{{POOL}}}": 9})])
    # The operator counts late; loads are never taken for less than they were read.
    check(promtool, tmp_path, {**series, ready: "1x200"}, [(backlog, 13, {f"{backlog}{{{POOL}}}": 6})])


def test_without_pods_loads_are_unknown_and_streams_are_those_that_wait(promtool: str, tmp_path: Path) -> None:
    streams = "stream2llm:pool_open_streams"
    waiting = {f'stream2llm_router_waiting_streams{{{POOL},instance="{i}"}}': "2x200" for i in (1, 2)}
    expected = [
        (streams, 13, {f"{streams}{{{POOL}}}": 2}),
        ("stream2llm:pool_prefill_backlog_seconds", 13, {}),
        ("stream2llm:pool_kv_cache_usage", 13, {}),
        (SIGNAL, 13, {}),
    ]
    check(promtool, tmp_path, waiting, expected)
    # Not ready is not the same as not wanted.
    ready = f"stream2llm_pool_ready_replicas{{{POOL}}}"
    wanted = f"stream2llm_pool_replicas{{{POOL}}}"
    check(promtool, tmp_path, {**waiting, ready: "0x200", wanted: "1x200"}, expected)
    check(promtool, tmp_path, {**waiting, **a_pod("a")}, [(streams, 13, {f"{streams}{{{POOL}}}": 7})])


def test_a_pool_that_is_to_have_no_pods_has_no_load(promtool: str, tmp_path: Path) -> None:
    """Else its autoscaler would complain of missing signals for as long as nobody needs it."""
    none = {f"stream2llm_pool_replicas{{{POOL}}}": "0x200", f"stream2llm_router_waiting_streams{{{POOL}}}": "0x200"}
    series = ("pool_open_streams", "pool_prefill_backlog_seconds", "pool_kv_cache_usage", "pool_preemption_signal")
    expected = [(f"stream2llm:{name}", 13.0, {f"stream2llm:{name}{{{POOL}}}": 0.0}) for name in series]
    check(promtool, tmp_path, none, expected)
    # What its last pods say while they leave counts.
    leaving = "stream2llm:pool_kv_cache_usage"
    check(promtool, tmp_path, {**none, **a_pod("a")}, [(leaving, 13, {f"{leaving}{{{POOL}}}": 0.5})])


def test_a_pod_whose_clock_is_ahead_never_makes_a_pool_shrink(promtool: str, tmp_path: Path) -> None:
    """Nothing is known of its age, so there is no signal, and without one nothing shrinks."""
    series = a_pod("a", since="3600x200")
    check(promtool, tmp_path, series, [(SIGNAL, 13, signal(None))])
    # One that is right speaks for the pool.
    check(promtool, tmp_path, {**series, **a_pod("b")}, [(SIGNAL, 13, signal(0))])


def test_pools_do_not_mix(promtool: str, tmp_path: Path) -> None:
    other = {
        name.replace('pool="p"', 'pool="q"'): values
        for name, values in a_pod("a", cost="0+1x200", preemptions="0+1x200").items()
    }
    wasting = {'stream2llm:pool_preemption_signal{namespace="n",pool="q"}': 1.25}
    check(promtool, tmp_path, {**a_pod("a"), **other}, [(SIGNAL, 13, {**signal(0), **wasting})])


def test_alerts_fire_for_what_they_name(promtool: str, tmp_path: Path) -> None:
    labels = {"namespace": "n", "pool": "p"}
    series = {
        **a_pod("a", cost="0+3x200", preemptions="0+1x200"),
        f"stream2llm_router_waiting_streams{{{POOL}}}": "0x40 2x160",
        f"stream2llm_pool_ready_replicas{{{POOL}}}": "1x40 0x160",
        f"stream2llm_pool_scaling_ready{{{POOL}}}": "1x40 0x160",
    }
    path = rules(tmp_path)
    fired = {
        "Stream2LLMStreamsWaiting": [{**labels, "severity": "warning"}],
        "Stream2LLMNoReadyPod": [{**labels, "severity": "critical"}],
        "Stream2LLMPreemptionWaste": [{**labels, "severity": "warning"}],
        "Stream2LLMAutoscalingHolds": [{**labels, "severity": "warning"}],
        "Stream2LLMMetricsMissing": [],
        "Stream2LLMRouterLag": [],
    }
    annotated = {
        rule["alert"]: rule["annotations"]
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    assert set(fired) <= set(annotated)
    check_alerts(promtool, tmp_path, series, 9, dict.fromkeys(("Stream2LLMStreamsWaiting", "Stream2LLMNoReadyPod"), ()))
    check_alerts(promtool, tmp_path, series, 30, fired, annotated)


def check_alerts(
    promtool: str,
    folder: Path,
    series: Mapping[str, str],
    minutes: float,
    fired: Mapping[str, Sequence[Mapping[str, str]]],
    annotated: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """promtool compares annotations as well; those with figures are given here as they must read."""
    words = {
        "Stream2LLMStreamsWaiting": "2 streams of n/p wait because no pod has room.",
        "Stream2LLMNoReadyPod": "Streams are open in pool n/p and no pod is ready.",
        "Stream2LLMAutoscalingHolds": "Pool n/p does not shrink, and may not grow: its autoscaler does not work.",
        "Stream2LLMPreemptionWaste": "Pods of n/p lose 20% of their time to preemptions for want of memory.",
    }
    document = {
        "rule_files": [str(rules(folder))],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": [
                    {
                        "alertname": name,
                        "eval_time": f"{minutes}m",
                        "exp_alerts": [
                            {
                                "exp_labels": dict(labels),
                                "exp_annotations": {
                                    "summary": words[name],
                                    "runbook_url": (annotated or {})[name]["runbook_url"],
                                },
                            }
                            for labels in all_labels
                        ],
                    }
                    for name, all_labels in fired.items()
                ],
            }
        ],
    }
    path = folder / "alerts.yaml"
    path.write_text(yaml.safe_dump(document))
    result = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_has_its_place_in_the_runbook(tmp_path: Path) -> None:
    runbook = (CHART.parent.parent / "docs" / "runbook.md").read_text()
    headings = {line.removeprefix("## ").strip() for line in runbook.splitlines() if line.startswith("## ")}
    groups = yaml.safe_load(rules(tmp_path).read_text())["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert {rule["alert"] for rule in alerts} == headings
    for rule in alerts:
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{rule['alert'].lower()}"
