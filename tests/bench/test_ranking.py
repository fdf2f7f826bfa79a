"""Ranking of pages, and the context lists that come of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stream2llm import ContextItem
from stream2llm_bench.demo.asking import Context, search_order
from stream2llm_bench.demo.crawling import Fetched
from stream2llm_bench.demo.ranking import rank


def test_pages_with_the_rarer_words_of_the_question_come_first() -> None:
    texts = {0: "the router forwards", 1: "nothing here", 2: "the router holds a lease", 3: "the router"}
    assert rank("Which router holds the lease?", texts) == [2, 0, 3, 1]


@given(st.permutations(range(8)), st.integers(0, 1000))
def test_a_search_engine_is_wrong_by_two_places_at_most(ranking: list[int], seed: int) -> None:
    order = search_order(ranking, seed)
    assert sorted(order) == sorted(ranking)
    assert all(abs(order.index(page) - ranking.index(page)) <= 2 for page in ranking)
    assert order == search_order(ranking, seed)


def test_known_pages_go_by_their_id() -> None:
    context = Context("lease")
    context.add(Fetched(4, "u4", "other text", 0.1))
    assert context.ranked_items() == [ContextItem("page-4", "other text")]
    context.add(Fetched(1, "u1", "a lease", 0.2))
    assert context.ranked_items() == [ContextItem("page-1", "a lease"), ContextItem("page-4", None)]
