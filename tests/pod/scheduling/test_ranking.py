from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stream2llm_pod.scheduling.ranking import RankIndex

CHANGES = st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 5)), max_size=60)


@given(CHANGES)
def test_it_stays_sorted_through_any_changes(changes: list[tuple[int, int | None]]) -> None:
    index, expected = RankIndex(), {}
    for number, rank in changes:
        req_id = f"r{number}"
        if rank is None:
            index.discard(req_id)
            expected.pop(req_id, None)
        else:
            index.put(req_id, (rank, req_id))
            expected[req_id] = (rank, req_id)
        assert list(index) == sorted(expected.values())
        assert list(reversed(index)) == sorted(expected.values(), reverse=True)
        assert len(index) == len(expected)
    assert all(index.key(req_id) == key for req_id, key in expected.items())
    assert all((f"r{number}" in index) == (f"r{number}" in expected) for number in range(10))
