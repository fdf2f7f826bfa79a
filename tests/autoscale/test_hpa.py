"""The other backend in closed loop: external metrics from a small adapter, nobody but Kubernetes scales."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from external_metrics import PREFIX, Adapter
from keda import external_metrics_are_served, serve_external_metrics
from monitoring import Prometheus
from pool_loop import SPEED, PoolLoop, running_loop, running_plane, spec

from stream2llm_operator.desired.scaling import DOWN_STEP_S, DOWN_WINDOW_S

pytestmark = pytest.mark.autoscale

MANY, FEW = 10, 3
MISSING: set[str] = set()
"""Series that the adapter has no figures of."""


@pytest.fixture(scope="module")
def hpa_loop(
    redis_server: Any, model: Path, output: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PoolLoop]:
    folder = tmp_path_factory.mktemp("hpa")
    with redis_server.client() as client:
        client.flushall()
    with running_plane(folder) as (plane, api):
        prometheus = Prometheus(plane.components, folder / "prometheus", SPEED)
        prometheus.start()

        def figure(series: str, labels: dict[str, str]) -> float | None:
            if series in MISSING:
                return None
            selector = ",".join(f'{name}="{value}"' for name, value in labels.items())
            return prometheus.value(f"{series}{{{selector}}}")

        with Adapter(folder / "adapter", figure) as adapter:
            serve_external_metrics(api, "default", "adapter", adapter.port, adapter.authority)
            plane.components.wait("the adapter's API", lambda: external_metrics_are_served(api))
            with running_loop(plane, api, prometheus, redis_server.url, model, folder) as loop:
                scaling = {"minReplicas": 1, "hpa": {"metricPrefix": PREFIX}}
                loop.create(spec(redis_server.url, prometheus.url, **scaling))
                try:
                    yield loop
                finally:
                    loop.timeline.write(output / "hpa", "External metrics without KEDA, all times a tenth")


def test_load_rises_and_falls(hpa_loop: PoolLoop) -> None:
    loop, load = hpa_loop, hpa_loop.load
    loop.wait("a first pod", lambda: loop.ready_pods == 1)
    loop.wait("the signals are there", lambda: loop.condition()[:2] == ("True", "Autoscaled"))

    load.level = MANY
    loop.wait("preemptions for want of memory", lambda: (loop.preemptions() or 0) > 0)
    assert loop.ready_pods == 1
    loop.wait("more pods", lambda: loop.ready_pods >= 2)
    loop.wait("no more preemptions", lambda: load.open_streams == MANY and loop.preemptions() == 0)

    load.level = FEW
    loop.wait("one pod is enough", lambda: loop.wanted_pods == 1 and loop.ready_pods == 1)
    assert load.lost == {}


def test_one_series_missing_is_told_and_nothing_shrinks(hpa_loop: PoolLoop) -> None:
    loop = hpa_loop
    loop.load.level = FEW
    loop.wait("one pod", lambda: loop.wanted_pods == 1 and loop.ready_pods == 1)
    MISSING.add("stream2llm:pool_prefill_backlog_seconds")
    try:
        loop.wait("told", lambda: loop.condition()[:2] == ("False", "SignalsMissing"))
        assert loop.condition()[2].startswith("no figures of prefill-backlog")
        loop.scale(3)
        seconds = SPEED.seconds(DOWN_WINDOW_S + DOWN_STEP_S) + 10
        loop.holds_for("nothing shrinks", seconds, lambda: loop.wanted_pods == 3)
    finally:
        MISSING.clear()
    loop.wait("over", lambda: loop.condition()[:2] == ("True", "Autoscaled"))
    assert loop.load.lost == {}
