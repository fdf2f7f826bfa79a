"""The default backend in closed loop: load rises, falls and ends, with KEDA, Prometheus and our pods, all real."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chart import CHART
from keda import Keda, described
from monitoring import Prometheus
from outages import keda_killed, no_scrape_answered, prometheus_down, series_missing
from picturing import picture
from pool_loop import NAME, NAMESPACE, SPEED, PoolLoop, running_loop, running_plane, spec

from stream2llm_operator.desired.scaling import DOWN_STEP_S, DOWN_WINDOW_S

pytestmark = pytest.mark.autoscale

MANY, ENOUGH_FOR_TWO, FEW = 10, 8, 3


@pytest.fixture(scope="module")
def keda_loop(
    redis_server: Any, model: Path, output: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[PoolLoop, Keda]]:
    folder = tmp_path_factory.mktemp("keda")
    with redis_server.client() as client:
        client.flushall()
    with running_plane(folder) as (plane, api):
        prometheus = Prometheus(plane.components, folder / "prometheus", SPEED)
        prometheus.start()
        keda = Keda(plane, api, folder / "keda")
        keda.install()
        keda.start()
        with running_loop(plane, api, prometheus, redis_server.url, model, folder) as loop:
            scaling = {"minReplicas": 0, "keda": {"cooldownSeconds": SPEED.seconds(300)}}
            loop.create(spec(redis_server.url, prometheus.url, **scaling))
            try:
                yield loop, keda
            finally:
                loop.timeline.write(output / "keda", "KEDA, all times a tenth")
                print(described(api, NAMESPACE, NAME))


def test_load_rises_falls_and_ends(keda_loop: tuple[PoolLoop, Keda], redis_server: Any, output: Path) -> None:
    loop, _ = keda_loop
    load = loop.load
    loop.wait("a first pod", lambda: loop.ready_pods == 1)
    loop.wait("the signals are there", lambda: loop.condition()[:2] == ("True", "Autoscaled"))

    load.level = MANY
    loop.wait("preemptions for want of memory", lambda: (loop.preemptions() or 0) > 0)
    assert loop.ready_pods == 1
    loop.wait("more pods", lambda: loop.ready_pods >= 2)
    # The rate is over 12 s: nothing was preempted in that time, with all the load still there.
    loop.wait("no more preemptions", lambda: load.open_streams == MANY and loop.preemptions() == 0)
    picture(loop, redis_server.url, output)

    load.level = FEW
    loop.wait("one pod is enough", lambda: loop.wanted_pods == 1 and loop.ready_pods == 1)
    assert load.lost == {}

    load.level = 0
    loop.wait("no streams, no pods", lambda: loop.wanted_pods == 0 and not loop.node.pods("engine"))
    load.level = 1
    answered = load.outcomes["done"]
    loop.wait("an open wakes a pod", lambda: load.outcomes["done"] > answered)
    load.level = 0
    assert load.lost == {}
    loop.timeline.write(output / "keda-load", "Load rises, falls and ends under KEDA, all times a tenth")


LONGER_THAN_IT_TAKES_S = SPEED.seconds(DOWN_WINDOW_S + DOWN_STEP_S) + 10
"""By then a pool with its signals would have lost a pod."""


@pytest.mark.parametrize("outage", [prometheus_down, series_missing, keda_killed, no_scrape_answered])
def test_nothing_shrinks_while_signals_are_missing(keda_loop: tuple[PoolLoop, Keda], outage: Any) -> None:
    """Three pods for the load of one: without the outage two of them would go."""
    loop, keda = keda_loop
    loop.load.level = FEW
    loop.scale(3)
    with outage(loop, keda):
        loop.wait(f"{outage.__name__}: told", lambda: loop.condition()[:2] == ("False", "SignalsMissing"))
        assert loop.condition()[2]
        loop.scale(3)
        loop.holds_for(f"{outage.__name__}: nothing shrinks", LONGER_THAN_IT_TAKES_S, lambda: loop.wanted_pods == 3)
    loop.wait(f"{outage.__name__}: over", lambda: loop.condition()[:2] == ("True", "Autoscaled"))
    assert loop.load.lost == {}


def test_nothing_shrinks_while_pods_have_a_wrong_clock(keda_loop: tuple[PoolLoop, Keda]) -> None:
    """An hour ahead, they have been ready since a time to come, and nobody knows how old they are."""
    loop, _ = keda_loop
    loop.load.level = FEW
    loop.node.clock_ahead_s = 3600.0
    restart_all(loop)
    try:
        loop.wait("a wrong clock: told", lambda: loop.condition()[2].startswith("no figures of preemptions"))
        loop.scale(3)
        loop.holds_for("a wrong clock: nothing shrinks", LONGER_THAN_IT_TAKES_S, lambda: loop.wanted_pods == 3)
    finally:
        loop.node.clock_ahead_s = 0.0
    restart_all(loop)
    loop.wait("a wrong clock: over", lambda: loop.condition()[:2] == ("True", "Autoscaled"))
    assert loop.load.lost == {}


def restart_all(loop: PoolLoop) -> None:
    """All pods at once: a stream that saw one after another go would be blamed for it."""
    for pod in loop.node.pods("engine"):
        pod.kill()


def test_what_was_held_goes_in_the_end(keda_loop: tuple[PoolLoop, Keda]) -> None:
    loop, _ = keda_loop
    loop.load.level = FEW
    loop.wait("one pod is enough again", lambda: loop.wanted_pods == 1 and loop.ready_pods == 1)
    assert loop.load.lost == {}


def test_a_pod_that_is_not_read_still_counts(keda_loop: tuple[PoolLoop, Keda]) -> None:
    """Two pods share a load that one alone would not carry; the figures of one of them are lost."""
    loop, _ = keda_loop
    loop.load.level = ENOUGH_FOR_TWO
    loop.wait("two pods carry it", lambda: loop.wanted_pods >= 2 and loop.ready_pods == loop.wanted_pods)
    loop.wait("all streams are there", lambda: loop.load.open_streams == ENOUGH_FOR_TWO)
    loop.unread = {loop.node.pods("engine")[0].name}
    try:
        loop.holds_for("a pod that is not read still counts", LONGER_THAN_IT_TAKES_S, lambda: loop.wanted_pods >= 2)
    finally:
        loop.unread = set()
    assert loop.load.lost == {}


def test_every_query_of_the_dashboard_has_data(keda_loop: tuple[PoolLoop, Keda]) -> None:
    loop, _ = keda_loop
    loop.load.level = FEW
    loop.wait("an answer", lambda: loop.load.outcomes["done"] > 0)
    board = json.loads((CHART / "files" / "dashboard.json").read_text())
    names = {"$namespace": NAMESPACE, "$pool": NAME, "$__rate_interval": f"{SPEED.seconds(120)}s", "$pod": ".*"}
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert queries

    def empty() -> list[str]:
        # One panel shows what was turned away, and nothing while nothing is.
        loop.load.send_rubbish()
        found = []
        for query in queries:
            text = query
            for name, value in names.items():
                text = text.replace(name, value)
            if not loop.prometheus.query(text):
                found.append(text)
        return found

    loop.wait("every query has data", lambda: not empty())
