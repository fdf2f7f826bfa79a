"""What routers and people read in a heartbeat."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.heartbeats import Figures, Pod, parse_heartbeat

BEAT: dict[str, Any] = {
    "incarnation": "i",
    "protocol": 1,
    "fingerprint": "f",
    "state": "ready",
    "models": ["m"],
    "url": "http://pod:8000",
    "time_ms": 1000,
    "load": {"open_streams": 3, "backlog_tokens": 1234, "kv_usage": 0.42},
    "capacity": {"max_open_streams": 128, "kv_tokens": 1},
    "prefill_tokens_per_s": 5100.4,
    "figures": {
        "preemptions": {"memory": 7, "policy": 2},
        "recomputed_tokens": 900,
        "ttft_ms": {"p50": 210, "p95": 1460, "count": 3},
    },
}


def parsed(**changes: Any) -> Pod:
    found = parse_heartbeat("a", json.dumps({**BEAT, **changes}))
    assert found is not None
    return found


def test_all_that_is_told() -> None:
    figures = Figures(7, 2, 900, 210.0, 1460.0)
    expected = Pod(
        "a", "i", 1, "ready", 128, 3, 1234, 0.42, 5100.4, 1000, frozenset({"m"}), "http://pod:8000", "f", figures
    )
    assert parsed() == expected


def test_a_pod_may_tell_less() -> None:
    found = parsed(figures=None, prefill_tokens_per_s=None, models=None, url=None, fingerprint=None)
    assert found == Pod("a", "i", 1, "ready", 128, 3, 1234, 0.42, None, 1000)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"incarnation": 1}',
        json.dumps({"load": 3}).encode(),
        b"[" * 50_000,
        json.dumps({**BEAT, "time_ms": float("inf")}).encode(),
        json.dumps({**BEAT, "load": {**BEAT["load"], "kv_usage": "much"}}).encode(),
    ],
)
def test_unreadable_ones_are_no_pods(raw: bytes) -> None:
    assert parse_heartbeat("a", raw) is None


@pytest.mark.parametrize(
    "figures", [[1], "7", {"preemptions": 7}, {"recomputed_tokens": 10**400}, {"ttft_ms": {"p50": "soon"}}]
)
def test_a_pod_that_serves_is_not_lost_for_figures_that_only_people_read(figures: object) -> None:
    assert parsed(figures=figures).figures == Figures()
    assert parsed(figures=figures).max_open_streams == 128


@pytest.mark.parametrize("field", ["open_streams", "backlog_tokens"])
def test_a_number_that_no_float_can_hold_is_unreadable(field: str) -> None:
    """Such a pod passed the router's look at heartbeats, and ended its turn as soon as a stream was to be placed."""
    assert parse_heartbeat("a", json.dumps({**BEAT, "load": {**BEAT["load"], field: 10**400}})) is None


def test_what_would_write_to_a_terminal_is_no_pod() -> None:
    assert parse_heartbeat("\x1b[2J", json.dumps(BEAT)) is None
    assert parse_heartbeat(b"\xff".decode("utf-8", "surrogateescape"), json.dumps(BEAT)) is None
    assert parse_heartbeat("a", json.dumps({**BEAT, "state": "ready\x07"})) is None


@pytest.mark.parametrize("rate", [None, 0, -5, "NaN", "Infinity", float("nan"), float("inf")])
def test_an_impossible_rate_is_unknown(rate: object) -> None:
    assert parsed(prefill_tokens_per_s=rate).prefill_tokens_per_s is None


@pytest.mark.parametrize(("told", "usage"), [(float("nan"), 0.0), (-3, 0.0), (7, 1.0), ("0.5", 0.5)])
def test_the_use_of_the_kv_cache_is_a_share(told: object, usage: float) -> None:
    assert parsed(load={**BEAT["load"], "kv_usage": told}).kv_usage == usage


@given(st.binary() | st.text() | st.recursive(st.integers() | st.text(), st.lists).map(json.dumps))
def test_nonsense_is_left_out(raw: bytes | str) -> None:
    assert parse_heartbeat("a", raw) is None
