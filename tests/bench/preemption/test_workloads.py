from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stream2llm_bench.preemption.workloads import Arriving, Kind, Workload, blocks_for_a_third, most_open_tokens

SHORT, LONG = Kind((10, 20), (2, 3), 1.0), Kind((100, 200), (4, 6), 2.0)


def test_one_seed_draws_one_workload() -> None:
    workload = Workload("mixed", (SHORT, LONG), streams=20, streams_per_s=2.0)
    assert workload.draw(1) == workload.draw(1)
    assert workload.draw(1) != workload.draw(2)


def test_streams_are_of_their_kinds_in_turn() -> None:
    streams = Workload("mixed", (SHORT, LONG), streams=40, streams_per_s=2.0).draw(0)
    assert len({stream.name for stream in streams}) == 40
    for stream, kind in zip(streams, (SHORT, LONG) * 20, strict=True):
        assert kind.tokens[0] <= stream.tokens <= kind.tokens[1]
        assert kind.chunks[0] <= len(stream.chunks) <= kind.chunks[1]
        assert all(tokens >= 1 for _, tokens in stream.chunks)
        times = [when_s for when_s, _ in stream.chunks]
        assert times == sorted(times)
        assert stream.finish_s == times[-1]


def test_what_open_streams_hold_is_counted_until_they_finish() -> None:
    streams = [
        Arriving("a", ((0.0, 10), (2.0, 20))),
        Arriving("b", ((1.0, 5), (3.0, 5))),
        # It arrives at the moment at which b has finished, and counts beside it.
        Arriving("c", ((3.0, 7),)),
    ]
    assert most_open_tokens(streams) == 35
    assert most_open_tokens(streams[1:]) == 17
    assert most_open_tokens([]) == 0


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 9).map(float), st.integers(1, 50)), min_size=1, max_size=4).map(sorted),
        max_size=6,
    )
)
def test_it_equals_counting_at_every_moment(drawn: list[list[tuple[float, int]]]) -> None:
    streams = [Arriving(str(i), tuple(chunks)) for i, chunks in enumerate(drawn)]
    counted = [
        sum(
            tokens
            for stream in streams
            if stream.finish_s >= now_s
            for when_s, tokens in stream.chunks
            if when_s <= now_s
        )
        for now_s in map(float, range(10))
    ]
    assert most_open_tokens(streams) == max(counted)


def test_a_third_is_never_less_than_the_longest_prompt() -> None:
    two, ten = ([Arriving(str(i), ((0.0, 3000),)) for i in range(count)] for count in (2, 10))
    # A third of two is 2,000 tokens, which holds neither of them: one, and eight blocks beside it, are 3,400.
    assert blocks_for_a_third(two, 50) == 68
    assert blocks_for_a_third(ten, 50) == 200
