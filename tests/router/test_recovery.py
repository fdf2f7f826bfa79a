"""What becomes of streams whose pod goes, on real servers."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from lone_router import KEYS, TENANT, Pool

from stream2llm.entries import Append, Cancel, Finish, Open, StreamOptions, encode
from stream2llm_router.placing import MAX_ATTEMPTS
from stream2llm_router.trimming import missing_entries

pytestmark = pytest.mark.redis


@pytest.fixture
def pool(server: Any) -> Any:
    with server.client() as client:
        yield Pool(client)


def test_the_streams_of_a_silent_pod_go_to_another_with_all_that_they_have(pool: Pool) -> None:
    pool.beat("a")
    pool.open("s")
    pool.send(Append("s", text="one"))
    pool.turn()
    pool.beat("a", age_ms=10_000)
    pool.beat("b")
    pool.turn()
    assert pool.place() == ("open", "b", 2)
    pool.send(Append("s", text="two"))
    pool.turn()
    adopt, append = pool.log("b")
    assert (adopt[b"op"], adopt[b"upto"], adopt[b"attempt"]) == (b"adopt", b"2", b"2")
    assert (append[b"text"], append[b"seq"], append[b"attempt"]) == (b"two", b"3", b"2")
    assert not pool.client.hexists(KEYS.pods, "a")
    assert not pool.client.exists(KEYS.gone, KEYS.assigned("a", "1"), KEYS.log("a", "1"))
    assert pool.client.hgetall(KEYS.assigned("b", "1")) == {b"default:s": b"1"}
    assert pool.usage()["streams"] == 1


def test_a_pod_that_is_quiet_for_less_than_the_lapse_keeps_its_streams(pool: Pool) -> None:
    pool.beat("a")
    pool.open("s")
    pool.beat("a", age_ms=9_000)
    pool.beat("b")
    pool.turn()
    assert pool.place() == ("open", "a", 1)


def test_an_outage_fences_nobody_until_a_full_period_after_it(pool: Pool) -> None:
    pool.beat("a")
    pool.beat("b", "b1")
    pool.open("s", "t")
    pool.beat("a", age_ms=60_000)
    pool.beat("b", "b1", age_ms=60_000)
    pool.now_s += 60.0
    pool.forwarder._refresh_at_s = 0.0
    pool.forwarder.turn()
    for _ in range(9):
        pool.turn()
    assert (pool.place("s"), pool.place("t")) == (("open", "a", 1), ("open", "b", 1))
    pool.beat("b", "b1")
    pool.turn()
    assert (pool.place("s"), pool.place("t")) == (("open", "b", 2), ("open", "b", 1))


def test_a_pod_that_starts_anew_gives_up_what_it_had_at_once(pool: Pool) -> None:
    pool.beat("a", "1")
    pool.open("s")
    pool.beat("a", "2")
    pool.turn()
    assert pool.place() == ("open", "a", 2)
    assert [entry[b"op"] for entry in pool.log("a", "2")] == [b"adopt"]


def test_without_another_pod_a_stream_waits_and_takes_what_comes(pool: Pool) -> None:
    pool.beat("a")
    pool.open("s")
    pool.beat("a", age_ms=10_000)
    pool.turn()
    assert pool.place() == ("held", "", 2)
    pool.send(Finish("s"))
    pool.turn()
    pool.beat("b")
    pool.turn()
    assert pool.place() == ("finishing", "b", 3)
    assert pool.log("b")[0][b"upto"] == b"2"


def test_a_finished_stream_is_still_finished_after_it_was_held(pool: Pool) -> None:
    pool.beat("a")
    pool.open("s")
    pool.send(Finish("s"))
    pool.turn()
    pool.beat("a", age_ms=10_000)
    pool.turn()
    assert pool.place() == ("held", "", 2)
    pool.beat("b")
    pool.turn()
    assert pool.place() == ("finishing", "b", 3)


def test_a_stream_that_nobody_takes_in_time_ends(pool: Pool) -> None:
    pool.forwarder._holding._open_wait_ms = 0
    pool.beat("a")
    pool.open("s")
    pool.beat("a", age_ms=10_000)
    pool.turn()
    pool.turn()
    assert pool.errors() == ["overloaded"]
    assert pool.usage()["streams"] == 0
    assert pool.usage()["bytes"] == 0


def test_the_open_that_wakes_a_pool_from_zero_outlasts_the_start_of_its_pod(pool: Pool) -> None:
    pool.forwarder._holding._start_wait_ms = 1_800_000
    pool.open("s")
    pool.turn()
    assert pool.place() == ("held", "", 0)
    seconds, _ = pool.client.time()
    pool.client.zadd(KEYS.held(TENANT), {"s": (seconds - 1_000) * 1000})
    pool.turn()
    assert pool.errors() == []
    pool.beat("a")
    pool.turn()
    assert pool.place() == ("open", "a", 1)


def test_a_deadline_counts_while_a_stream_waits_for_a_first_pod(pool: Pool) -> None:
    pool.forwarder._holding._start_wait_ms = 1_800_000
    seconds, _ = pool.client.time()
    minute_ago_ms = (seconds - 60) * 1000
    for number, (stream, deadline_ms) in enumerate((("s", 59_000), ("patient", 900_000), ("none", None))):
        opening = Open(stream, prompt="{context}", options=StreamOptions(deadline_ms=deadline_ms))
        pool.client.xadd(KEYS.ingress(TENANT), encode(opening), id=f"{minute_ago_ms}-{number}")
    pool.turn()
    pool.client.zadd(KEYS.held(TENANT), dict.fromkeys(("s", "patient", "none"), minute_ago_ms))
    pool.turn()
    assert {stream: pool.errors(stream) for stream in ("s", "patient", "none")} == {
        "s": ["deadline"],
        "patient": [],
        "none": [],
    }


def test_a_stream_that_has_sent_tokens_goes_to_the_same_model_only(pool: Pool) -> None:
    pool.beat("a")
    pool.open("s")
    pool.client.hset(KEYS.route(TENANT, "s"), "next_token", 3)
    pool.beat("a", age_ms=10_000)
    pool.beat("b", fingerprint="other")
    pool.turn()
    assert pool.place() == ("held", "", 2)
    pool.beat("c", fingerprint="f")
    pool.turn()
    assert pool.place() == ("open", "c", 3)


def test_a_stream_whose_model_has_gone_ends_with_that(pool: Pool) -> None:
    pool.forwarder._holding._open_wait_ms = 0
    pool.beat("a")
    pool.open("s")
    pool.client.hset(KEYS.route(TENANT, "s"), "next_token", 3)
    pool.beat("a", age_ms=10_000)
    pool.beat("b", fingerprint="other")
    pool.turn()
    pool.turn()
    assert pool.errors() == ["model_changed"]


def test_a_stream_without_tokens_may_go_to_another_model(pool: Pool) -> None:
    pool.beat("a")
    pool.open("s")
    pool.beat("a", age_ms=10_000)
    pool.beat("b", fingerprint="other")
    pool.turn()
    assert pool.place() == ("open", "b", 2)
    assert pool.route()["fingerprint"] == "other"


def test_a_stream_that_ends_every_pod_ends_after_three_and_its_neighbours_do_not(pool: Pool) -> None:
    """The killer and a neighbour travel together through two pods; another neighbour joins at the last."""
    for n in range(1, MAX_ATTEMPTS + 1):
        pool.beat("a", str(n))
        if n == 1:
            pool.open("killer", "with-it")
        if n == 3:
            pool.open("late")
        for _ in range(2):
            pool.turn()
        members = set(pool.client.hkeys(KEYS.assigned("a", str(n))))
        if n < 3:
            assert members == {b"default:killer", b"default:with-it"}
        else:
            # On its last attempt a stream shares its pod with no other such stream.
            assert len(members) == 2
            assert b"default:late" in members
            pool.client.hdel(KEYS.assigned("a", "3"), "default:with-it")
            pool.client.hset(KEYS.route(TENANT, "with-it"), mapping={"pod": "", "incarnation": "", "state": "held"})
            pool.client.zadd(KEYS.held(TENANT), {"with-it": pool.forwarder._fleet.now_ms})
            pool.client.zrem(KEYS.held(TENANT), "killer")
            pool.client.hset(KEYS.route(TENANT, "killer"), mapping={"pod": "a", "incarnation": "3", "state": "open"})
            pool.client.hset(KEYS.assigned("a", "3"), "default:killer", "2 0")
    pool.beat("a", "4")
    pool.turn()
    assert pool.errors("killer") == ["attempts_exhausted"]
    pool.turn()
    assert pool.errors("with-it") == []
    assert pool.errors("late") == []
    assert pool.route("late")["failures"] == "0"
    assert {pool.place("with-it")[1], pool.place("late")[1]} == {"a"}


def test_only_the_streams_that_failed_most_often_are_blamed(pool: Pool) -> None:
    pool.beat("a")
    pool.open("s", "t", "u")
    pool.client.hset(KEYS.route(TENANT, "s"), "failures", 1)
    pool.client.hset(KEYS.route(TENANT, "t"), "failures", 1)
    pool.beat("a", age_ms=10_000)
    pool.turn()
    assert [pool.route(stream)["failures"] for stream in "stu"] == ["2", "2", "0"]


def test_streams_on_their_last_attempt_get_a_pod_each_until_they_have_shown_no_harm(pool: Pool) -> None:
    pool.beat("a")
    pool.open("s", "t")
    for stream in ("s", "t"):
        pool.client.hset(KEYS.route(TENANT, stream), "failures", MAX_ATTEMPTS - 2)
    pool.beat("a", "2")
    pool.turn()
    states = sorted(pool.place(stream)[0] for stream in ("s", "t"))
    assert states == ["held", "open"]
    for member, _ in pool.client.hgetall(KEYS.assigned("a", "2")).items():
        pool.client.hset(KEYS.assigned("a", "2"), member, "2 0")
    pool.turn()
    assert [pool.place(stream)[0] for stream in ("s", "t")] == ["open", "open"]


def test_a_pod_that_leaves_hands_its_streams_over_without_blame(pool: Pool) -> None:
    pool.beat("a")
    pool.open("s")
    pool.beat("a", state="draining")
    pool.beat("b")
    pool.turn()
    assert pool.place() == ("open", "a", 1)
    pool.beat("a", state="leaving")
    pool.turn()
    assert pool.place() == ("open", "b", 2)
    assert pool.route()["failures"] == "0"


def test_a_stream_that_nobody_else_takes_stays_with_the_pod_that_leaves(pool: Pool) -> None:
    pool.beat("a")
    pool.open("s")
    pool.beat("a", state="leaving")
    pool.turn()
    assert pool.place() == ("open", "a", 1)


def test_the_streams_of_a_pod_that_left_are_placed(pool: Pool) -> None:
    """As the pod's own script leaves them."""
    pool.beat("a")
    pool.open("s")
    pool.client.hdel(KEYS.pods, "a")
    pool.client.smove(KEYS.incarnations, KEYS.gone, "a:1")
    pool.beat("b")
    pool.turn()
    assert pool.place() == ("open", "b", 2)
    assert pool.route()["failures"] == "0"


def test_a_router_that_takes_over_finishes_what_the_last_one_began(pool: Pool) -> None:
    pool.beat("a")
    pool.open("s")
    pool.beat("a", age_ms=10_000)
    pool.forwarder._recovery._fleet.refresh()
    pool.now_s += 1.0
    pool.forwarder._recovery.declare_gone()
    pool.new_router()
    pool.beat("b")
    pool.turn()
    assert pool.place() == ("open", "b", 2)
    assert pool.route()["failures"] == "1"


def test_what_is_assigned_to_a_pod_that_is_gone_and_moved_on_since_is_forgotten(pool: Pool) -> None:
    pool.beat("a")
    pool.client.hset(KEYS.assigned("a", "1"), mapping={"default:expired": 0, "default:ended": 0})
    pool.client.hset(KEYS.route(TENANT, "ended"), mapping={"state": "ended", "incarnation": "1"})
    pool.beat("a", age_ms=10_000)
    pool.turn()
    assert not pool.client.exists(KEYS.gone, KEYS.assigned("a", "1"))


def test_a_full_pod_is_found_out_by_the_script(pool: Pool) -> None:
    """Two routers may both believe that the last place is theirs to give."""
    pool.beat("a", capacity={"max_open_streams": 1})
    pool.client.hset(KEYS.assigned("a", "1"), "other-tenant:x", 0)
    pool.open("s")
    assert pool.place() == ("held", "", 0)


def test_no_pod_at_all_and_no_room_are_told_apart(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pool.open("s")
    assert pool.forwarder.status()["waiting_for"] == []
    pool.turn()
    assert pool.forwarder.status()["waiting_for"] == ["no_pod"]
    pool.beat("a", capacity={"max_open_streams": 0})
    pool.turn()
    assert pool.forwarder.status()["waiting_for"] == ["no_room"]
    pool.turn()
    pool.beat("a")
    pool.turn()
    pool.turn()
    assert pool.forwarder.status()["waiting_for"] == []
    told = [record.getMessage() for record in caplog.records if record.name == "stream2llm_router.holding"]
    assert told == [
        "streams of tenant default wait: no pod is there",
        "streams of tenant default wait: no pod has room",
        "no stream of tenant default waits any more",
    ]


@pytest.mark.parametrize(
    ("capacity", "words"), [(None, "no pod is there"), (0, "no pod has room")], ids=["no pod", "no room"]
)
def test_a_reader_is_told_what_was_lacking(pool: Pool, capacity: int | None, words: str) -> None:
    pool.forwarder._holding._open_wait_ms = pool.forwarder._holding._start_wait_ms = 0
    if capacity is not None:
        pool.beat("a", capacity={"max_open_streams": capacity})
    pool.open("s")
    pool.turn()
    ((_, fields),) = pool.client.xrange(KEYS.reply(TENANT, "s"))
    event = json.loads(fields[b"data"])
    assert event["code"] == "overloaded"
    assert event["message"] == f"no pod has taken the stream within 0 ms: {words}"


def test_a_stream_that_is_cancelled_while_nobody_knows_that_its_pod_is_gone_ends(pool: Pool) -> None:
    """It was held until another pod came and was given all of it for nothing, or the reader got `overloaded`."""
    pool.beat("a")
    pool.open("s", "t")
    pool.send(Append("s", text="x"), Cancel("s"))
    pool.turn()
    assert [pool.place(stream)[:2] for stream in "st"] == [("open", "a"), ("open", "a")]
    pool.beat("a", age_ms=10_000)
    pool.turn()
    assert pool.place("t") == ("held", "", 2)
    assert pool.route("s")["state"] == "ended"
    ((_, fields),) = pool.client.xrange(KEYS.reply(TENANT, "s"))
    assert fields[b"event"] == b"done"
    assert json.loads(fields[b"data"]) == {
        "finish_reason": "cancelled",
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        "timings": {"attempts": 1},
    }
    assert not pool.client.exists(KEYS.entries(TENANT, "s"))
    assert pool.client.zrange(KEYS.held(TENANT), 0, -1) == [b"t"]
    assert pool.usage()["streams"] == 1


def test_cancelling_a_stream_that_waits_is_answered_at_once(pool: Pool) -> None:
    pool.open("s")
    pool.send(Cancel("s"))
    pool.turn()
    ((_, fields),) = pool.client.xrange(KEYS.reply(TENANT, "s"))
    assert fields[b"event"] == b"done"
    assert json.loads(fields[b"data"])["finish_reason"] == "cancelled"
    assert pool.route()["state"] == "ended"
    assert not pool.client.exists(KEYS.held(TENANT), KEYS.entries(TENANT, "s"))
    assert (pool.usage()["streams"], pool.usage()["bytes"]) == (0, 0)


def test_a_tenant_has_no_more_open_streams_than_its_limit(pool: Pool) -> None:
    pool.client.hset(KEYS.limits(TENANT), "max_open_streams", 2)
    pool.beat("a")
    pool.turn()
    pool.open("s", "t", "u")
    assert pool.errors("u") == ["overloaded"]
    assert [pool.place(stream)[0] for stream in "stu"] == ["open", "open", "ended"]


def test_a_tenant_has_no_more_bytes_than_its_limit(pool: Pool) -> None:
    pool.client.hset(KEYS.limits(TENANT), "max_open_bytes", 200)
    pool.beat("a")
    pool.turn()
    pool.open("s")
    pool.send(Append("s", text="x" * 300), Append("s", text="y"), Cancel("s"))
    pool.turn()
    assert pool.errors() == ["overloaded"]
    assert [fields[b"op"] for _, fields in pool.client.xrange(KEYS.entries(TENANT, "s"))] == [
        b"open",
        b"append",
        b"cancel",
    ]


def test_entries_that_a_producer_trims_away_are_missed_and_told_of_once(pool: Pool) -> None:
    pool.beat("a")
    pool.open("s")
    pool.turn()
    fields: dict[Any, Any] = encode(Append("s", text="x"))
    for _ in range(5):
        pool.client.xadd(KEYS.ingress(TENANT), fields, maxlen=2, approximate=False)
    for _ in range(3):
        pool.turn()
    ((_, told),) = pool.client.xrange(KEYS.rejected(TENANT))
    assert (told[b"code"], told[b"message"].split()[0]) == (b"lost", b"3")
    assert pool.route()["seq"] == "3"
    pool.client.delete(KEYS.ingress(TENANT))
    pool.open("t")
    pool.turn()
    assert pool.client.xlen(KEYS.rejected(TENANT)) == 1


@pytest.mark.parametrize(
    ("added", "length", "taken", "missing"),
    [(10, 3, 7, 0), (10, 3, 5, 2), (10, 3, None, None), (2, 2, 7, None), (0, 0, 0, 0)],
)
def test_missing_entries(added: int, length: int, taken: int | None, missing: int | None) -> None:
    assert missing_entries(added, length, taken) == missing


def test_limits_that_cannot_be_read_count_as_absent(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    pool.client.hset(KEYS.limits(TENANT), mapping={"weight": "heavy", "max_open_streams": "-1"})
    pool.beat("a")
    pool.turn()
    pool.open("s")
    assert pool.place()[0] == "open"
    assert "weight 'heavy'" in caplog.text
