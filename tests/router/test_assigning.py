"""The choice of a pod, as a table."""

from __future__ import annotations

import pytest

from stream2llm.heartbeats import Pod
from stream2llm_router.assigning import (
    Given,
    Lack,
    Needs,
    choose_pod,
    common_rate,
    lack_of,
    predicted_ttft_s,
)

NOW_MS = 100_000


def pod(name: str, **changes: object) -> Pod:
    values: dict[str, object] = {
        "name": name,
        "incarnation": f"{name}-1",
        "protocol": 1,
        "state": "ready",
        "max_open_streams": 4,
        "open_streams": 0,
        "backlog_tokens": 0,
        "kv_usage": 0.0,
        "prefill_tokens_per_s": 1000.0,
        "beat_ms": NOW_MS,
    }
    return Pod(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pods", "recent", "chosen"),
    [
        ([], {}, None),
        ([pod("a")], {}, "a"),
        ([pod("a", beat_ms=NOW_MS - 10_000)], {}, None),
        ([pod("a", beat_ms=NOW_MS - 9_999)], {}, "a"),
        ([pod("a", state="draining"), pod("b", backlog_tokens=9)], {}, "b"),
        ([pod("a", protocol=2)], {}, None),
        ([pod("a", open_streams=4)], {}, None),
        ([pod("a", open_streams=3)], {"a-1": 1}, None),
        ([pod("a", backlog_tokens=500), pod("b", backlog_tokens=400)], {}, "b"),
        # A pod of a pool is as fast as its like, whatever it has had occasion to show.
        ([pod("a", backlog_tokens=500, prefill_tokens_per_s=2000.0), pod("b", backlog_tokens=400)], {}, "b"),
        ([pod("a", open_streams=3, prefill_tokens_per_s=40_000.0), pod("b", prefill_tokens_per_s=None)], {}, "b"),
        ([pod("a", open_streams=1), pod("b", prefill_tokens_per_s=100.0)], {}, "b"),
        ([pod("a", open_streams=2), pod("b", open_streams=1)], {}, "b"),
        ([pod("a", open_streams=1), pod("b")], {"b-1": 2}, "a"),
        ([pod("a", kv_usage=0.5), pod("b", kv_usage=0.4)], {}, "b"),
        ([pod("b"), pod("a")], {}, "a"),
    ],
)
def test_choice(pods: list[Pod], recent: dict[str, int], chosen: str | None) -> None:
    found = choose_pod(pods, NOW_MS, Needs(), {name: Given(streams) for name, streams in recent.items()})
    assert (found and found.name) == chosen


@pytest.mark.parametrize(
    ("pods", "fingerprint", "lack"),
    [
        ([], "", Lack.NO_POD),
        ([pod("a", beat_ms=NOW_MS - 10_000)], "", Lack.NO_POD),
        ([pod("a", protocol=2)], "", Lack.OTHER_PROTOCOL),
        ([pod("a", protocol=2), pod("b", state="draining"), pod("c", state="leaving")], "", Lack.LEAVING),
        ([pod("a", state="draining"), pod("b", open_streams=4)], "", Lack.NO_ROOM),
        ([pod("a", open_streams=4, fingerprint="f")], "f", Lack.NO_ROOM),
        ([pod("a", fingerprint="g"), pod("b", fingerprint="f", state="draining")], "f", Lack.OTHER_MODEL),
        ([pod("a", fingerprint="f", beat_ms=NOW_MS - 10_000)], "f", Lack.NO_POD),
        ([pod("a", fingerprint="g", open_streams=4)], "", Lack.NO_ROOM),
    ],
)
def test_what_is_lacking(pods: list[Pod], fingerprint: str, lack: Lack) -> None:
    needs = Needs(fingerprint=fingerprint)
    assert choose_pod(pods, NOW_MS, needs, {}) is None
    assert lack_of(pods, NOW_MS, needs) is lack


def test_a_named_model_decides_before_the_load() -> None:
    pods = [pod("a"), pod("b", models=frozenset({"tuned"}), backlog_tokens=900)]
    assert (found := choose_pod(pods, NOW_MS, Needs("tuned"), {}))
    assert found.name == "b"
    assert (found := choose_pod(pods, NOW_MS, Needs("other"), {}))
    assert found.name == "a"


@pytest.mark.parametrize(
    ("fields", "tokens", "given", "seconds"),
    [
        ({}, 0, Given(), 0.0),
        ({"backlog_tokens": 500}, 0, Given(), 0.5),
        ({"backlog_tokens": 500}, 250, Given(), 0.75),
        ({"open_streams": 2}, 0, Given(), 0.128),
        ({"backlog_tokens": 100}, 100, Given(1, 236), 0.5),
        ({"backlog_tokens": 500, "kv_usage": 0.5}, 0, Given(), 1.0),
        ({"backlog_tokens": 500, "kv_usage": 1.0}, 0, Given(), 10.0),
    ],
)
def test_prediction(fields: dict[str, object], tokens: int, given: Given, seconds: float) -> None:
    assert predicted_ttft_s(pod("a", **fields), tokens, 1000.0, given) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("rates", "common"), [([], 1000.0), ([None, None], 1000.0), ([None, 200.0, 900.0], 900.0), ([40_000.0], 40_000.0)]
)
def test_the_speed_of_a_pool_is_what_any_pod_has_shown(rates: list[float | None], common: float) -> None:
    assert common_rate([pod(f"p{i}", prefill_tokens_per_s=rate) for i, rate in enumerate(rates)]) == common


def chosen(pods: list[Pod], needs: Needs, given: dict[str, Given] | None = None) -> str | None:
    found = choose_pod(pods, NOW_MS, needs, given or {})
    return found and found.name


def test_the_same_beginning_goes_to_the_same_pod_while_that_costs_little() -> None:
    pods = [pod(name, max_open_streams=100) for name in "abcd"]
    home = chosen(pods, Needs(affinity="default/1"))
    assert {chosen(pods, Needs(affinity=f"default/{i}")) for i in range(40)} == set("abcd")
    assert home is not None
    assert chosen([p for p in pods if p.name != home], Needs(affinity="default/1")) != home
    a_little_busier = [pod(p.name, max_open_streams=100, backlog_tokens=49 * (p.name == home)) for p in pods]
    assert chosen(a_little_busier, Needs(affinity="default/1")) == home
    busier = [pod(p.name, max_open_streams=100, backlog_tokens=50 * (p.name == home)) for p in pods]
    assert chosen(busier, Needs(affinity="default/1")) != home


def test_a_burst_of_the_same_beginning_spreads() -> None:
    pods = [pod(name, max_open_streams=100) for name in "abc"]
    given: dict[str, Given] = {}
    for _ in range(30):
        name = chosen(pods, Needs(affinity="default/1", tokens=20), given)
        before = given.get(f"{name}-1", Given())
        given[f"{name}-1"] = Given(before.streams + 1, before.tokens + 20)
    assert {name: there.streams for name, there in given.items()} == {"a-1": 10, "b-1": 10, "c-1": 10}


def test_a_stream_that_has_sent_tokens_fits_its_own_model_only() -> None:
    pods = [pod("a", fingerprint="x"), pod("b", fingerprint="y", backlog_tokens=900)]
    assert chosen(pods, Needs(fingerprint="y")) == "b"
    assert chosen(pods, Needs(fingerprint="z")) is None
