"""Percentiles of the last minutes."""

from __future__ import annotations

from stream2llm_pod.serving.recent import KEPT, WINDOW_S, RecentTimes


def test_nothing_yet() -> None:
    assert RecentTimes().percentiles_ms(0.0) is None


def test_nearest_rank() -> None:
    times = RecentTimes()
    for ms in (30, 10, 20):
        times.note(0.0, ms)
    assert times.percentiles_ms(1.0) == {"p50": 20, "p95": 30, "count": 3}


def test_old_times_are_forgotten_and_there_is_a_bound() -> None:
    times = RecentTimes()
    times.note(0.0, 1000)
    times.note(WINDOW_S, 5)
    assert times.percentiles_ms(WINDOW_S + 1) == {"p50": 5, "p95": 5, "count": 1}
    for i in range(2 * KEPT):
        times.note(WINDOW_S + 1, i)
    found = times.percentiles_ms(WINDOW_S + 2)
    assert found is not None
    assert found["count"] == KEPT
