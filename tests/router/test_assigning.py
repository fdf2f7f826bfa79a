"""The choice of a pod, as a table."""

from __future__ import annotations

import json

import pytest

from stream2llm_router.assigning import Pod, choose_pod, parse_heartbeat

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
        ([pod("a", backlog_tokens=500, prefill_tokens_per_s=2000.0), pod("b", backlog_tokens=400)], {}, "a"),
        ([pod("a", open_streams=2), pod("b", open_streams=1)], {}, "b"),
        ([pod("a", open_streams=1), pod("b")], {"b-1": 2}, "a"),
        ([pod("a", kv_usage=0.5), pod("b", kv_usage=0.4)], {}, "b"),
        ([pod("b"), pod("a")], {}, "a"),
    ],
)
def test_choice(pods: list[Pod], recent: dict[str, int], chosen: str | None) -> None:
    found = choose_pod(pods, NOW_MS, recent)
    assert (found and found.name) == chosen


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b"\xff", b'{"incarnation": 1}', json.dumps({"load": 3}).encode(), b"[" * 50_000]
)
def test_unreadable_heartbeats_are_no_pods(raw: bytes) -> None:
    assert parse_heartbeat("a", raw) is None


def test_a_named_model_decides_before_the_load() -> None:
    pods = [pod("a"), pod("b", models=frozenset({"tuned"}), backlog_tokens=900)]
    assert (found := choose_pod(pods, NOW_MS, {}, model="tuned"))
    assert found.name == "b"
    assert (found := choose_pod(pods, NOW_MS, {}, model="other"))
    assert found.name == "a"


@pytest.mark.parametrize("rate", [None, 0, -5, "NaN", "Infinity"])
def test_an_impossible_rate_counts_as_unknown(rate: object) -> None:
    beat = {
        "incarnation": "x",
        "protocol": 1,
        "state": "ready",
        "capacity": {"max_open_streams": 1},
        "load": {"open_streams": 0, "backlog_tokens": 7, "kv_usage": 0},
        "prefill_tokens_per_s": rate,
        "time_ms": 1,
    }
    found = parse_heartbeat("a", json.dumps(beat).encode())
    assert found is not None
    assert found.predicted_wait_s == 7 / 1000
