"""The Grafana dashboard, the rules and the alerts read series that something exports."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import programs
import pytest
import yaml
from prometheus_client import CollectorRegistry

from stream2llm_operator.metrics import OperatorMetrics
from stream2llm_router.metrics import RouterMetrics

pytestmark = pytest.mark.kubernetes

ROOT = Path(__file__).resolve().parent.parent.parent
CHART = ROOT / "helm" / "stream2llm"
NAME = re.compile(r"\bstream2llm[_:][a-z0-9_]+")


def panels() -> list[dict[str, Any]]:
    board = json.loads((CHART / "files" / "dashboard.json").read_text())
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def rendered(*arguments: str) -> list[dict[str, Any]]:
    command = [str(programs.ensure("helm")["helm"]), "template", "s2l", str(CHART), *arguments]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


def rule_groups() -> list[dict[str, Any]]:
    manifests = rendered("--set", "monitoring.rules.enabled=true,monitoring.alerts.enabled=true")
    return [
        group for manifest in manifests if manifest["kind"] == "PrometheusRule" for group in manifest["spec"]["groups"]
    ]


def exported() -> set[str]:
    """Every series by name. The engine's and the pod's need vLLM to make, so their names are read in the sources."""
    registry = CollectorRegistry()
    RouterMetrics("n/p", registry)
    OperatorMetrics(registry)
    names = set()
    for metric in registry.collect():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(metric.type, ("",))
        names |= {metric.name + suffix for suffix in suffixes}
    sources = ROOT / "pod" / "stream2llm_pod"
    engine = (sources / "engine" / "statistics.py").read_text()
    names |= {f"stream2llm_{name}" for name in re.findall(r'"([a-z_]+_total)"', engine)}
    names |= {f"stream2llm_{name}" for name in re.findall(r'_gauge\(\s*"([a-z_]+)"', engine)}
    names |= {f"stream2llm_{name}" for name in re.findall(r'_gauge_cls,\s*"[a-z_]+",\s*"([a-z_]+)"', engine)}
    names |= {f"{name}_bucket" for name in re.findall(r'name="(stream2llm_[a-z_]+)"', engine)}
    serving = (sources / "serving" / "metrics.py").read_text()
    names |= {f"stream2llm_{name}_bucket" for name in re.findall(r'histogram\(\s*"([a-z_]+)"', serving)}
    names |= {f"stream2llm_{name}" for name in re.findall(r'(?:gauge\(|prefix \+) ?"([a-z_]+)"', serving)}
    return names


def test_every_series_that_is_read_exists() -> None:
    groups = rule_groups()
    recorded = {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}
    read = {name for rule in expressions() for name in NAME.findall(rule)}
    read |= {name for group in groups for rule in group["rules"] for name in NAME.findall(rule["expr"])}
    assert read - recorded - exported() == set()
    # What is recorded is for somebody.
    scaling = (ROOT / "operator" / "stream2llm_operator" / "desired" / "scaling.py").read_text()
    assert recorded - read - set(NAME.findall(scaling)) == set()


def test_the_pods_own_metrics_are_found_in_the_sources() -> None:
    found = exported()
    assert {
        "stream2llm_ttft_seconds_bucket",
        "stream2llm_preemptions_total",
        "stream2llm_kv_cache_usage_ratio",
    } <= found
    assert {"stream2llm_plan_seconds_bucket", "stream2llm_cost_model_correction_ratio"} <= found
    assert {"stream2llm_open_streams", "stream2llm_pod_draining", "stream2llm_intake_lag_seconds"} <= found


def test_every_query_is_promql(promtool: str, tmp_path: Path) -> None:
    queries = [query.replace("$__rate_interval", "1m") for query in expressions()]
    rules = [{"record": f"query:{i}", "expr": query} for i, query in enumerate(queries)]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    result = subprocess.run([promtool, "check", "rules", str(path)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    board = json.loads((CHART / "files" / "dashboard.json").read_text())
    taken: dict[tuple[int, int], str] = {}
    for panel in board["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                taken[x, y] = panel["title"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))


def test_the_config_map_holds_the_dashboard() -> None:
    def maps(*arguments: str) -> list[dict[str, Any]]:
        return [
            manifest
            for manifest in rendered(*arguments)
            if manifest["kind"] == "ConfigMap" and manifest["metadata"]["name"].endswith("-dashboard")
        ]

    (made,) = maps("--set", "monitoring.dashboard.enabled=true")
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(made["data"]["stream2llm-pool.json"])["title"] == "Stream2LLM pool"
    assert maps() == []
