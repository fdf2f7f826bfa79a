"""The operator comes and goes: killed at any point, or replaced by its standby. No other operator may run beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from acting import CHILDREN, children, get
from operator_process import RunningOperator
from waiting import wait_for

pytestmark = pytest.mark.kubernetes


def test_killed_in_the_middle_it_goes_on_from_what_is_there(
    cluster: Any, control_plane: Any, minimal: dict[str, Any], tmp_path: Path
) -> None:
    """Killed at several points of a first reconcile, each time with some children made and others not."""
    arguments = ("--namespaces", cluster.namespace)
    with RunningOperator(control_plane.kubeconfig, tmp_path / "log", *arguments) as running:
        for count in (1, 4, 8):
            cluster.create(minimal, f"pool-{count}")
            wait_for("some children", lambda count=count: len(children(cluster)) >= count)
            running.kill()
            running.start()
        wanted = {name.replace("pool", f"pool-{count}") for count in (1, 4, 8) for name in CHILDREN}
        wait_for("all children", lambda: children(cluster) == wanted)
        assert "Traceback" not in (tmp_path / "log").read_text()


def test_the_standby_takes_over(cluster: Any, control_plane: Any, minimal: dict[str, Any], tmp_path: Path) -> None:
    arguments = ("--namespaces", cluster.namespace, "--lease-namespace", cluster.namespace)
    with RunningOperator(control_plane.kubeconfig, tmp_path / "first", *arguments) as first:
        cluster.create(minimal, "one")
        wait_for("the first acts", lambda: len(children(cluster)) == len(CHILDREN))
        with RunningOperator(control_plane.kubeconfig, tmp_path / "second", *arguments) as second:
            wait_for("the second is up", second.healthy)
            cluster.create(minimal, "two")
            wait_for("the first acts", lambda: len(children(cluster)) == 2 * len(CHILDREN))
            assert second.metric("stream2llm_operator_writes_total") == 0
            first.kill()
            cluster.create(minimal, "three")
            wait_for("the second acts", lambda: len(children(cluster)) == 3 * len(CHILDREN), 90)


@pytest.mark.parametrize(
    "components", [("kube-apiserver",), ("kube-apiserver", "etcd")], ids=lambda names: "+".join(names)
)
def test_a_restart_of_the_api_server_is_survived(
    cluster: Any, control_plane: Any, minimal: dict[str, Any], tmp_path: Path, components: tuple[str, ...]
) -> None:
    """Watches break, requests fail for a while; what changed meanwhile is carried out afterwards."""
    with RunningOperator(control_plane.kubeconfig, tmp_path / "log", "--namespaces", cluster.namespace) as running:
        cluster.create(minimal)
        wait_for("all children", lambda: children(cluster) == CHILDREN)
        for name in components:
            control_plane.stop_one(name, hard=True)
        for name in reversed(components):
            control_plane.start_one(name)
        control_plane.wait_ready()
        cluster.patch({"spec": {"replicas": 3}})
        cluster.kubectl("delete", "service", "pool", "--wait=false")
        wait_for("the change", lambda: get(cluster, "deployment", "pool")["spec"]["replicas"] == 3, 120)
        wait_for("the repair", lambda: children(cluster) == CHILDREN, 120)
        assert running.is_running
        assert running.healthy()
