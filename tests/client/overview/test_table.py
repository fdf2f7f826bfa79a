"""An overview in a terminal, and what is made of heartbeats."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from stream2llm.heartbeats import Figures, Pod
from stream2llm.overview.reading import SILENT, Overview, PodView, TenantView, pod_view
from stream2llm.overview.table import preemptions_per_minute, render

POD = PodView("pod-a", "ready", 400, 3, 128, 1234, 0.42, 5100.4, 7, 2, 900, 210.0, 1460.0)


def view(now_ms: int = 1400, **changes: Any) -> PodView:
    pod = Pod("pod-a", "i", 1, "ready", 128, 3, 1234, 0.42, 5100.4, 1000, figures=Figures(7, 2, 900, 210.0, 1460.0))
    return pod_view(dataclasses.replace(pod, **changes), now_ms)


def test_a_heartbeat_becomes_a_row() -> None:
    assert view() == POD


def test_a_pod_that_tells_less_is_shown_with_what_it_tells() -> None:
    assert view(figures=Figures(), prefill_tokens_per_s=None) == dataclasses.replace(
        POD,
        prefill_tokens_per_s=None,
        memory_preemptions=None,
        policy_preemptions=None,
        recomputed_tokens=None,
        ttft_p50_ms=None,
        ttft_p95_ms=None,
    )


def test_a_pod_that_has_fallen_silent_is_called_so() -> None:
    found = view(now_ms=1000 + 3_600_000)
    assert (found.state, found.silent_ms) == (SILENT, 3_600_000)


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
