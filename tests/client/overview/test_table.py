"""An overview in a terminal, and what is made of heartbeats."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.overview.reading import SILENT, Overview, PodView, TenantView, pod_views
from stream2llm.overview.table import preemptions_per_minute, render

POD = PodView("pod-a", "ready", 400, 3, 128, 1234, 0.42, 5100.4, 7, 2, 900, 210.0, 1460.0)
BEAT: dict[str, Any] = {
    "time_ms": 1000,
    "state": "ready",
    "load": {"open_streams": 3, "backlog_tokens": 1234, "kv_usage": 0.42},
    "capacity": {"max_open_streams": 128},
    "prefill_tokens_per_s": 5100.4,
    "figures": {
        "preemptions": {"memory": 7, "policy": 2},
        "recomputed_tokens": 900,
        "ttft_ms": {"p50": 210, "p95": 1460, "count": 3},
    },
}


def view(**changes: Any) -> PodView:
    (found,) = pod_views({"pod-a": json.dumps({**BEAT, **changes})}, 1400)
    return found


def test_a_heartbeat_becomes_a_row() -> None:
    assert view() == POD


def test_a_pod_that_tells_less_is_shown_with_what_it_tells() -> None:
    assert view(figures=None, prefill_tokens_per_s=None) == dataclasses.replace(
        POD,
        prefill_tokens_per_s=None,
        memory_preemptions=None,
        policy_preemptions=None,
        recomputed_tokens=None,
        ttft_p50_ms=None,
        ttft_p95_ms=None,
    )


def test_a_pod_that_has_fallen_silent_is_called_so() -> None:
    (found,) = pod_views({"pod-a": json.dumps(BEAT)}, 1000 + 3_600_000)
    assert (found.state, found.silent_ms) == (SILENT, 3_600_000)


@given(st.dictionaries(st.text(), st.binary() | st.text() | st.builds(lambda n: json.dumps([n]), st.integers())))
def test_nonsense_is_left_out(beats: dict[str, Any]) -> None:
    assert list(pod_views(beats, 0)) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_figure_that_is_no_number_is_unknown(value: float) -> None:
    assert view(prefill_tokens_per_s=value).prefill_tokens_per_s is None


def test_the_whole_table() -> None:
    idle = dataclasses.replace(POD, name="b", state="draining", silent_ms=12_000, open_streams=0, kv_usage=0.0)
    idle = dataclasses.replace(idle, prefill_tokens_per_s=None, ttft_p50_ms=None, ttft_p95_ms=None, backlog_tokens=0)
    tenants = (TenantView("default", 0, 0), TenantView("team-b", 12_000, 4))
    before = Overview("n/p", 0, (dataclasses.replace(POD, memory_preemptions=4), idle), tenants)
    now = Overview("n/p", 30_000, (POD, idle), tenants)
    assert render(now, before).splitlines() == [
        "pool n/p: 1 of 2 pods ready, 3 open streams, 4 waiting",
        "",
        "POD    STATE          STREAMS   KV  BACKLOG  PREFILL/S         PREEMPTIONS  PER MIN  TTFT P50       P95",
        "pod-a  ready            3/128  42%    1,234      5,100  7 memory, 2 policy      6.0    210 ms  1,460 ms",
        "b      draining 12 s    0/128   0%        0          -  7 memory, 2 policy      0.0         -         -",
        "",
        "TENANT   IN INGRESS  WAITING",
        "default           0        0",
        "team-b       12,000        4",
    ]


def test_without_pods_it_says_so() -> None:
    assert "(no pod has a heartbeat)" in render(Overview("n/p", 0, (), ()))


@pytest.mark.parametrize(
    ("before", "minutes", "expected"),
    [(None, 1.0, None), (POD, 0.0, None), (dataclasses.replace(POD, memory_preemptions=None), 1.0, None)],
)
def test_no_rate_without_an_earlier_figure(before: PodView | None, minutes: float, expected: float | None) -> None:
    assert preemptions_per_minute(POD, before, minutes) == expected


def test_a_pod_that_started_anew_counts_from_zero() -> None:
    before = dataclasses.replace(POD, memory_preemptions=1000)
    assert preemptions_per_minute(POD, before, 2.0) == 4.5
