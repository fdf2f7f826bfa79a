from __future__ import annotations

from stream2llm_operator.watching import WatchAge

A, B = ("ns", "a"), ("ns", "b")


def test_a_watch_that_shows_what_is_listed_is_not_behind() -> None:
    age = WatchAge()
    assert age.observe({A: "1", B: "2"}, {A: "1", B: "2"}, 10.0) == 0.0
    assert age.observe({}, {}, 99.0) == 0.0


def test_what_is_missing_old_or_gone_counts_from_when_it_was_first_seen() -> None:
    for listed, watched in (({A: "1"}, {}), ({A: "2"}, {A: "1"}), ({}, {A: "1"})):
        age = WatchAge()
        assert age.observe(listed, watched, 10.0) == 0.0
        assert age.observe(listed, watched, 70.0) == 60.0
        assert age.observe({A: "3"}, {A: "3"}, 80.0) == 0.0


def test_a_watch_that_moves_on_is_late_and_not_dead() -> None:
    age = WatchAge()
    for step in range(20):
        assert age.observe({A: str(step + 1)}, {A: str(step)}, step * 60.0) == 0.0


def test_one_object_that_stands_still_counts_beside_others_that_move() -> None:
    age = WatchAge()
    age.observe({A: "5", B: "2"}, {A: "4", B: "1"}, 0.0)
    assert age.observe({A: "6", B: "3"}, {A: "5", B: "1"}, 30.0) == 30.0
