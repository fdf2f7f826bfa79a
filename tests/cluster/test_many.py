"""Hundreds of nodes and resources; the nodes are fake, and pods Ready at once. For how long it takes see the bench."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fake_nodes
import pytest
from acting import settled
from operator_process import RunningOperator
from programs import ROOT
from waiting import wait_for

pytestmark = [pytest.mark.kubernetes, pytest.mark.long]

NODES, RESOURCES, LIMIT_S = 500, 200, 1200.0


def resource(number: int) -> dict[str, Any]:
    return {
        "apiVersion": "stream2llm.io/v1alpha1",
        "kind": "StreamingPrefill",
        "metadata": {"name": f"pool-{number:03}"},
        "spec": {
            "model": {"name": "llama", "source": {"huggingFace": {"repo": "meta-llama/Llama-3.1-8B-Instruct"}}},
            "streams": {"redis": {"url": "redis://valkey:6379"}},
            "router": {"replicas": 1},
        },
    }


@pytest.mark.timeout(3600)
def test_hundreds_of_resources_become_ready_and_then_nothing_is_written(tmp_path: Path) -> None:
    with fake_nodes.FakeNodes(tmp_path / "cluster", NODES) as nodes:
        plane = nodes.plane
        plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(ROOT / "crds"))
        with RunningOperator(plane.kubeconfig, tmp_path / "log") as operator:
            items = [resource(number) for number in range(RESOURCES)]
            plane.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

            def statuses() -> list[dict[str, Any]]:
                found = json.loads(plane.kubectl("get", "spf", "-o", "json").stdout)["items"]
                return [item.get("status", {}) for item in found]

            def ready() -> int:
                conditions = [each for status in statuses() for each in status.get("conditions", ())]
                return sum(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

            wait_for("all are Ready", lambda: ready() == RESOURCES, LIMIT_S)
            assert {status["gpuProduct"] for status in statuses()} == {fake_nodes.PRODUCT}
            before = settled(operator)
            passes = operator.metric("stream2llm_operator_reconcile_seconds_count")
            plane.kubectl("annotate", "spf", "--all", "somebody=elses")
            wait_for(
                "all were looked at again",
                lambda: operator.metric("stream2llm_operator_reconcile_seconds_count") >= passes + RESOURCES,
                LIMIT_S,
            )
            assert settled(operator) == before
            assert operator.healthy()
        assert "Traceback" not in (tmp_path / "log").read_text()
