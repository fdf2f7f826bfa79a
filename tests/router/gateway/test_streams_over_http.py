"""Streams through a running router's HTTP endpoints, on a real Redis."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from http_caller import KEYS, POOL, Caller, sse
from running_router import RunningRouter, running_router
from standin_pod import StandInPod
from waiting import wait_for

from stream2llm import Client

pytestmark = [pytest.mark.redis, pytest.mark.e2e]
WAIT_S = 90.0
OPEN = {"prompt": "Context: {context}\nQuestion: why?"}


def opened(caller: Caller, **fields: Any) -> str:
    answer = caller.post("/v1/streams", json=OPEN | fields)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["stream"])


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["data"]["text"] for event in events if event["event"] == "token")


def error_of(answer: httpx.Response) -> tuple[int, str, str | None]:
    detail = answer.json()["error"]
    assert detail["request_id"] == answer.headers["x-request-id"]
    assert detail["message"]
    return answer.status_code, detail["code"], detail["field"]


def test_a_stream_from_open_to_done(acme: Caller, pod: StandInPod) -> None:
    answer = acme.post("/v1/streams", json={"messages": [{"role": "user", "content": "{context}"}], "stream": "whole"})
    assert answer.status_code == 201
    assert answer.headers["location"] == answer.json()["events"] == "/v1/streams/whole/events"
    for chunk in ("one", "two", "two"):
        answer = acme.post("/v1/streams/whole/chunks", json={"text": f"page {chunk}", "chunk": chunk})
        assert (answer.status_code, answer.json()["stream"]) == (202, "whole")
        assert answer.json()["ingress_id"]
    assert acme.post("/v1/streams/whole/finish").status_code == 202
    events = acme.events("whole")
    assert [event["event"] for event in events] == ["accepted", *["token"] * 5, "done"]
    assert text_of(events) == "page one | page two "
    assert [event["data"]["index"] for event in events if event["event"] == "token"] == [0, 1, 2, 3, 4]
    assert events[-1]["data"]["finish_reason"] == "stop"
    assert sorted(event["id"] for event in events) == [event["id"] for event in events]
    opens = [entry for tenant, entry in pod.entries if entry.stream == "whole" and hasattr(entry, "messages")]
    assert opens[0].messages == [{"role": "user", "content": "{context}"}]


def test_updates_replace_and_token_ids_pass(acme: Caller) -> None:
    stream = opened(acme)
    items = [{"id": "a", "text": "A"}, {"id": "b", "text": "B"}]
    assert acme.put(f"/v1/streams/{stream}/context", json={"context": items, "version": 1}).status_code == 202
    assert acme.put(f"/v1/streams/{stream}/context", json={"context": [{"id": "b"}, {"id": "a"}]}).status_code == 202
    assert acme.post(f"/v1/streams/{stream}/finish", json={"expect": 0}).status_code == 202
    assert text_of(acme.events(stream)) == "B | A "
    stream = opened(acme)
    assert acme.post(f"/v1/streams/{stream}/chunks", json={"tokens": [5, 6]}).status_code == 202
    assert acme.post(f"/v1/streams/{stream}/finish", json={"tokens": [7], "chunk": "c"}).status_code == 202
    assert text_of(acme.events(stream)) == "(5, 6) | (7,) "


def test_every_event_can_be_resumed_after(acme: Caller) -> None:
    stream = opened(acme)
    acme.post(f"/v1/streams/{stream}/finish", json={"text": "a b c d"})
    events = acme.events(stream)
    for position, event in enumerate(events[:-1]):
        assert acme.events(stream, after=event["id"]) == events[position + 1 :]
    answer = acme.get(f"/v1/streams/{stream}/events", headers={"Last-Event-ID": events[-1]["id"]})
    assert (answer.status_code, answer.content) == (204, b"")


def test_a_reply_that_expired_or_never_was_is_gone(acme: Caller, redis_server: Any) -> None:
    assert error_of(acme.get("/v1/streams/never/events")) == (410, "reply_gone", None)
    stream = opened(acme)
    acme.post(f"/v1/streams/{stream}/finish", json={"text": "x"})
    last = acme.events(stream)[0]["id"]
    with redis_server.client() as client:
        # What expiry does.
        client.delete(KEYS.reply("acme", stream), KEYS.route("acme", stream))
    for headers in ({}, {"Last-Event-ID": last}):
        answer = acme.get(f"/v1/streams/{stream}/events", headers=headers)
        assert error_of(answer) == (410, "reply_gone", None)


def test_the_same_open_again_is_no_error_and_another_is_a_conflict(acme: Caller) -> None:
    assert opened(acme, stream="twice") == "twice"
    wait_for("a route", lambda: acme.post("/v1/streams", json=OPEN | {"stream": "twice"}).json()["ingress_id"] == "")
    answer = acme.post("/v1/streams", json={"prompt": "other {context}", "stream": "twice"})
    assert error_of(answer) == (409, "open_conflict", "stream")
    assert acme.delete("/v1/streams/twice").status_code == 202
    assert acme.events("twice")[-1]["data"]["finish_reason"] == "cancelled"
    assert acme.delete("/v1/streams/twice").json()["ingress_id"] == ""
    assert acme.post("/v1/streams/twice/finish").json()["ingress_id"] == ""
    assert error_of(acme.post("/v1/streams/twice/chunks", json={"text": "x"})) == (409, "stream_ended", "stream")


def test_an_unknown_stream_is_told_at_once(acme: Caller) -> None:
    for answer in (
        acme.post("/v1/streams/unknown/chunks", json={"text": "x"}),
        acme.put("/v1/streams/unknown/context", json={"context": []}),
        acme.post("/v1/streams/unknown/finish"),
        acme.delete("/v1/streams/unknown"),
    ):
        assert error_of(answer) == (404, "unknown_stream", "stream")


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({}, 422, "malformed", "messages"),
        ({"prompt": "none"}, 422, "marker", "prompt"),
        ({"prompt": "{context}", "messages": [{"role": "user", "content": "x"}]}, 422, "malformed", "messages"),
        ({"prompt": 7}, 422, "malformed", "prompt"),
        ({"prompt": "{context}", "surprise": 1}, 422, "malformed", "surprise"),
        ({"prompt": "{context}", "stream": "not ok"}, 422, "malformed", "stream"),
        ({"prompt": "{context}", "options": {"deadline_ms": -1}}, 422, "invalid_options", "options.deadline_ms"),
        ({"prompt": "{context}", "options": {"unknown": 1}}, 422, "invalid_options", "options"),
        ({"prompt": "{context}" + "x" * (1 << 20)}, 413, "chunk_too_large", "prompt"),
        ({"prompt": "\ud800 {context}"}, 422, "malformed", None),
        ([], 422, "malformed", None),
    ],
)
def test_a_bad_open_names_the_field(acme: Caller, body: Any, status: int, code: str, field: str | None) -> None:
    answer = acme.post("/v1/streams", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert error_of(answer) == (status, code, field)


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({}, 422, "malformed", "text"),
        ({"text": "a", "tokens": [1]}, 422, "mixed_input", "tokens"),
        ({"tokens": [-1]}, 422, "malformed", "tokens.0"),
        ({"tokens": [True]}, 422, "malformed", "tokens.0"),
        ({"text": "a", "chunk": ""}, 422, "malformed", "chunk"),
        ({"text": "x" * ((1 << 20) + 1)}, 413, "chunk_too_large", "text"),
    ],
)
def test_a_bad_chunk_names_the_field(acme: Caller, body: Any, status: int, code: str, field: str | None) -> None:
    stream = opened(acme)
    assert error_of(acme.post(f"/v1/streams/{stream}/chunks", json=body)) == (status, code, field)
    acme.delete(f"/v1/streams/{stream}")


def test_what_is_no_json_or_no_route_is_told_in_the_same_shape(acme: Caller) -> None:
    headers = {"Content-Type": "application/json"}
    assert error_of(acme.post("/v1/streams", content=b"{", headers=headers)) == (400, "malformed", None)
    assert error_of(acme.get("/v1/nothing")) == (404, "not_found", None)
    answer = acme.get("/v1/streams")
    assert error_of(answer) == (405, "method_not_allowed", None)
    assert answer.headers["allow"] == "POST"
    answer = acme.get("/v1/streams/x/events", headers={"Last-Event-ID": "yesterday"})
    assert error_of(answer) == (422, "malformed", "last-event-id")


@pytest.mark.parametrize(
    ("headers", "shown"),
    [
        ({"Content-Type": "application/x-www-form-urlencoded"}, "application/x-www-form-urlencoded"),
        ({"Content-Type": "text/plain; charset=utf-8"}, "text/plain"),
        ({}, "missing"),
    ],
)
def test_json_that_is_not_said_to_be_json_is_told_how(acme: Caller, headers: dict[str, str], shown: str) -> None:
    for path in ("/v1/streams", "/v1/streams/x/chunks"):
        answer = acme.post(path, content=json.dumps(OPEN), headers=headers)
        assert error_of(answer) == (415, "unsupported_media_type", None)
        message = f"the body must come with Content-Type: application/json, which is {shown}"
        assert answer.json()["error"]["message"] == message
    assert error_of(acme.post("/v1/streams")) == (422, "malformed", None)
    answer = acme.post("/v1/streams", content="{", headers={"Content-Type": "application/vnd.x+json"})
    assert error_of(answer) == (400, "malformed", None)


def test_errors_are_in_our_words(acme: Caller) -> None:
    for answer, message in (
        (acme.post("/v1/streams", json={"prompt": 7}), "prompt must be a string"),
        (acme.post("/v1/streams"), "the body is missing"),
        (
            acme.get("/v1/streams/x/events", headers={"Last-Event-ID": "zzz"}),
            "last-event-id is no event id; they look like 1764482400000-0, and 0 is the beginning",
        ),
        (acme.delete("/v1/streams/not%20ok"), "stream must be 1 to 128 of A-Z, a-z, 0-9, '.', '_', ':' and '-'"),
        (acme.post("/v1/streams:run", content=b'{"op": "append"}'), "op must be 'open'"),
        (acme.post("/v1/streams:run", content=b"nonsense"), "the line is not JSON"),
    ):
        assert answer.json()["error"]["message"] == message


def test_tokens_decide_the_tenant(acme: Caller, globex: Caller, nobody: Caller, router: RunningRouter) -> None:
    stream = opened(acme, stream="private")
    acme.post(f"/v1/streams/{stream}/finish", json={"text": "secret"})
    assert text_of(acme.events(stream)) == "secret "
    assert error_of(globex.get(f"/v1/streams/{stream}/events")) == (410, "reply_gone", None)
    assert error_of(globex.post(f"/v1/streams/{stream}/chunks", json={"text": "x"})) == (
        404,
        "unknown_stream",
        "stream",
    )
    assert error_of(globex.delete(f"/v1/streams/{stream}")) == (404, "unknown_stream", "stream")
    # The same id is another stream for another tenant.
    opened(globex, stream="private")
    globex.post("/v1/streams/private/finish", json={"text": "own"})
    assert text_of(globex.events("private")) == "own "
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eDp5"}):
        answer = nobody.post("/v1/streams", json=OPEN, headers=headers)
        assert error_of(answer) == (401, "unauthorized", None)
        assert answer.headers["www-authenticate"] == "Bearer"
    with Caller(router.url, "wrong") as stranger:
        assert stranger.get("/v1/models").status_code == 401
        assert stranger.post("/v1/streams:run", content=b"").status_code == 401


def test_a_stream_may_be_opened_by_one_way_and_read_by_the_other(acme: Caller, redis_server: Any) -> None:
    with Client(redis_server.url, pool=POOL, tenant="acme") as client:
        stream = client.open(prompt="{context}")
        acme.post(f"/v1/streams/{stream.name}/finish", json={"text": "by both"})
        assert str(stream.answer()) == "by both "
    assert text_of(acme.events(stream.name)) == "by both "


def test_many_readers_share_one_connection(
    acme: Caller, router: RunningRouter, redis_server: Any, pod: StandInPod
) -> None:
    stream = opened(acme)
    found: list[list[dict[str, Any]]] = []

    def read() -> None:
        with Caller(router.url, acme.headers["authorization"].removeprefix("Bearer ")) as caller:
            found.append(caller.events(stream))

    readers = [threading.Thread(target=read) for _ in range(40)]
    for reader in readers:
        reader.start()
    try:
        wait_for("all readers are there", lambda: acme.get("/status.json").json()["http"]["readers"] == 40)
        with redis_server.client() as client:
            blocked = [row for row in client.client_list() if row["cmd"] == "xread" and "b" in row["flags"]]
        # The forwarder's, the pod's, and one for all readers.
        assert len(blocked) <= 3
    finally:
        acme.post(f"/v1/streams/{stream}/finish", json={"text": "one two three"})
        for reader in readers:
            reader.join()
    assert len(found) == 40
    assert all(events == found[0] for events in found)
    assert text_of(found[0]) == "one two three "
    wait_for("all readers have left", lambda: acme.get("/status.json").json()["http"]["readers"] == 0)


def test_a_reader_that_takes_nothing_holds_up_nobody(
    acme: Caller, router: RunningRouter, tokens: dict[str, str]
) -> None:
    """Its full socket must cost the others nothing, and the router a bounded amount of memory."""
    stream = opened(acme)
    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect(("127.0.0.1", router.port))
        head = f"GET /v1/streams/{stream}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tokens['acme']}\r\n\r\n"
        silent.sendall(head.encode())
        wait_for("the reader is there", lambda: acme.get("/status.json").json()["http"]["readers"] == 1)
        # More than the buffers of both ends of a connection hold.
        for _ in range(10):
            acme.post(f"/v1/streams/{stream}/chunks", json={"text": " ".join(["word" * 750] * 300)})
        acme.post(f"/v1/streams/{stream}/finish")
        events = acme.events(stream)
        sent = len([event for event in events if event["event"] == "token"])
        assert sent == 3009
        assert acme.get("/status.json").json()["http"]["readers"] == 1
        # It may still read on: what was too much for its queue is read from Redis then.
        silent.settimeout(WAIT_S)
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            piece = silent.recv(1 << 16)
            assert piece
            received += piece
        assert received.count(b"event: token") == sent
        assert received.count(b"event: done") == 1


def test_a_reader_that_vanishes_is_noticed_and_can_come_back(
    acme: Caller, router: RunningRouter, tokens: dict[str, str]
) -> None:
    stream = opened(acme)
    silent = socket.create_connection(("127.0.0.1", router.port))
    head = f"GET /v1/streams/{stream}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tokens['acme']}\r\n\r\n"
    silent.sendall(head.encode())
    wait_for("the reader is there", lambda: acme.get("/status.json").json()["http"]["readers"] == 1)
    silent.close()
    wait_for("its end is noticed", lambda: acme.get("/status.json").json()["http"]["readers"] == 0)
    acme.post(f"/v1/streams/{stream}/finish", json={"text": "still here"})
    assert text_of(acme.events(stream)) == "still here "


def test_text_arrives_as_it_is(acme: Caller) -> None:
    """Line separators of Unicode end no line of an event stream."""
    text = "a\u2028b\u0085c\vd\fe\x1cf\rg\nh\u00fc\U0001f600"
    stream = opened(acme)
    acme.post(f"/v1/streams/{stream}/finish", json={"text": text})
    with acme.stream("GET", f"/v1/streams/{stream}/events") as answer:
        body = answer.read().decode()
    events = list(sse(body.split("\n")))
    assert text_of(events) == text + " "


def lines(*operations: Any) -> bytes:
    return b"".join(json.dumps(operation).encode() + b"\n" for operation in operations)


def run(caller: Caller, body: Any) -> tuple[httpx.Response, list[dict[str, Any]]]:
    with caller.stream("POST", "/v1/streams:run", content=body) as answer:
        if answer.status_code != 200:
            answer.read()
            return answer, []
        assert answer.headers["content-type"].startswith("text/event-stream")
        return answer, list(sse(answer.iter_lines()))


@pytest.mark.parametrize("ending", [[{"op": "finish"}], [{"op": "finish", "text": "end"}], []])
def test_one_call_runs_a_whole_stream(acme: Caller, ending: list[Any]) -> None:
    pages = [{"op": "append", "text": "one"}, {"op": "append", "text": "two"}]
    answer, events = run(acme, lines({"op": "open", **OPEN}, *pages, *ending))
    assert text_of(events) == ("one | two | end " if ending and "text" in ending[0] else "one | two ")
    assert [event["event"] for event in events][-1] == "done"
    # Another reader may have the same events, by the id that the answer names.
    assert acme.events(answer.headers["x-stream-id"]) == events


def test_one_call_answers_while_operations_still_come(acme: Caller) -> None:
    accepted = threading.Event()

    def operations() -> Iterator[bytes]:
        yield lines({"op": "open", **OPEN, "stream": "duplex"})
        # The client sends and reads in one thread, so another one looks whether events come meanwhile.
        assert wait_for("the open is forwarded before the body ends", lambda: accepted.is_set() or seen())
        yield b'{"op": "app'
        yield b'end", "text": "late"}\n{"op": "finish"}'

    def seen() -> bool:
        answer = acme.get("/status.json").json()
        return bool(answer["http"]["readers"])

    with Caller(str(acme.base_url), acme.headers["authorization"].removeprefix("Bearer ")) as other:
        _, events = run(other, operations())
    assert text_of(events) == "late "


def test_bad_lines_of_one_call_are_told_and_left_out(acme: Caller) -> None:
    body = lines({"op": "open", **OPEN}, {"op": "append", "text": 5}, {"op": "append", "text": "good"})
    body += b"no json\n\n" + lines({"op": "update", "context": [{"id": "x"}]}, {"op": "open", **OPEN}, {"op": "finish"})
    _, events = run(acme, body)
    assert text_of(events) == "good "
    errors = [event for event in events if event["event"] == "error"]
    assert [(error["data"]["code"], error["data"]["terminal"]) for error in errors] == [
        ("malformed", False),
        ("malformed", False),
        ("malformed", False),
        ("unknown_item", False),
    ]
    local = [error["data"]["message"].split(":")[0] for error in errors if "id" not in error]
    assert local == ["line 2", "line 4", "line 6"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 422, "malformed"),
        (b"\n\n", 422, "malformed"),
        (b"{}", 422, "malformed"),
        (lines({"op": "append", "text": "x"}), 422, "malformed"),
        (lines({"op": "open", "prompt": "no marker"}), 422, "marker"),
        (b"\xff\xfe", 422, "malformed"),
    ],
)
def test_one_call_that_opens_nothing_is_an_ordinary_error(acme: Caller, body: bytes, status: int, code: str) -> None:
    answer, _ = run(acme, body)
    assert error_of(answer)[:2] == (status, code)


@pytest.mark.parametrize("finished", [False, True])
def test_hanging_up_cancels_a_call(
    acme: Caller, router: RunningRouter, tokens: dict[str, str], redis_server: Any, pod: StandInPod, finished: bool
) -> None:
    stream = f"hung-up-{finished}"
    operations = [{"op": "open", **OPEN, "stream": stream}]
    if finished:
        pod.gate.clear()
    try:
        with socket.create_connection(("127.0.0.1", router.port)) as caller:
            body = lines(*operations, *([{"op": "finish", "text": "a " * 40}] if finished else []))
            head = f"POST /v1/streams:run HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tokens['acme']}\r\n"
            caller.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n".encode() + body + b"\r\n")
            assert b"200 OK" in caller.recv(4096)
        with redis_server.client() as client:
            if finished:
                # The pod is in the middle of its answer when the cancel comes.
                entries = KEYS.entries("acme", stream)
                wait_for("the cancel", lambda: b"cancel" in [entry[b"op"] for _, entry in client.xrange(entries)])
                pod.gate.set()
            reply = KEYS.reply("acme", stream)
            wait_for(
                "the end",
                lambda: [event for _, event in client.xrevrange(reply, count=1) if event[b"event"] == b"done"],
            )
            (_, done), *_ = client.xrevrange(reply, count=1)
    finally:
        pod.gate.set()
    reason = json.loads(done[b"data"])["finish_reason"]
    # This pod answers to the end before it looks into its log again.
    assert reason == ("stop" if finished else "cancelled")
    kinds = lambda: [type(entry).__name__ for _, entry in pod.entries if entry.stream == stream]  # noqa: E731
    wait_for("the cancel arrives", lambda: kinds()[-1] == "Cancel")


def test_limits_of_one_tenant_leave_the_other_alone(
    redis_server: Any, pod: StandInPod, tokens: dict[str, str], tmp_path: Any
) -> None:
    limits = ("--http-max-open-streams", "2", "--http-max-readers", "1", "--http-max-body-bytes", "1000")
    with (
        running_router(redis_server.url, POOL, tmp_path, *limits) as router,
        Caller(router.url, tokens["acme"]) as acme,
        Caller(router.url, tokens["globex"]) as globex,
    ):
        streams = [opened(acme) for _ in range(2)]
        answer = acme.post("/v1/streams", json=OPEN)
        assert error_of(answer) == (429, "too_many_requests", None)
        assert answer.headers["retry-after"] == "1"
        opened(globex)
        with acme.stream("GET", f"/v1/streams/{streams[0]}/events") as reading:
            assert reading.status_code == 200
            assert error_of(acme.get(f"/v1/streams/{streams[1]}/events")) == (429, "too_many_requests", None)
        for stream in streams:
            acme.post(f"/v1/streams/{stream}/finish", json={"text": "x"})
        # Nobody reads how they end, and yet their places are free again.
        wait_for("an ended stream counts no more", lambda: acme.post("/v1/streams", json=OPEN).status_code == 201)
        answer = acme.post(f"/v1/streams/{streams[0]}/chunks", json={"text": "x" * 1000})
        assert error_of(answer) == (413, "body_too_large", None)
        answer = acme.post("/v1/streams", content=iter([b" " * 600, b" " * 600]))
        assert error_of(answer) == (413, "body_too_large", None)
        answer, _ = run(acme, b" " * 2000)
        assert error_of(answer) == (413, "body_too_large", None)
        _, events = run(globex, lines({"op": "open", **OPEN}, {"op": "append", "text": "x" * 2000}))
        assert [event["data"]["code"] for event in events if event["event"] == "error"] == ["body_too_large"]
        assert events[-1]["event"] == "done"


def test_requests_are_logged_without_what_they_hold(
    acme: Caller, router: RunningRouter, tokens: dict[str, str]
) -> None:
    stream = opened(acme, prompt="what nobody may log {context}")
    answer = acme.post(
        f"/v1/streams/{stream}/finish?token=in-the-query",
        json={"text": "nor this"},
        headers={"X-Request-Id": "trace-1"},
    )
    assert answer.headers["x-request-id"] == "trace-1"
    assert acme.get("/v1/models", headers={"X-Request-Id": "not ok"}).headers["x-request-id"] != "not ok"
    acme.events(stream)
    wanted = wait_for(
        "the line is written", lambda: [line for line in router.access_lines() if line["request_id"] == "trace-1"]
    )
    (line,) = wanted
    seconds = line.pop("seconds")
    assert 0 <= seconds < WAIT_S
    assert line.pop("time").endswith("Z")
    assert line == {
        "request_id": "trace-1",
        "tenant": "acme",
        "method": "POST",
        "route": "/v1/streams/{stream}/finish",
        "stream": stream,
        "status": 202,
        "complete": True,
        "sent_bytes": len(answer.content),
    }
    said = router.said()
    for secret in ("nobody may log", "nor this", "in-the-query", *tokens.values()):
        assert secret not in said
    metrics = acme.get("/metrics").text
    assert 'http_requests_total{namespace="tests",pool="gateway",route="/v1/streams",status="2xx"}' in metrics


def test_readers_are_let_go_when_the_router_stops(
    redis_server: Any, pod: StandInPod, tokens: dict[str, str], tmp_path: Any
) -> None:
    """They resume at another router, where nothing is missing and nothing comes twice."""
    with running_router(redis_server.url, POOL, tmp_path) as second, Caller(second.url, tokens["acme"]) as elsewhere:
        with running_router(redis_server.url, POOL, tmp_path) as first, Caller(first.url, tokens["acme"]) as caller:
            stream = opened(caller)
            with caller.stream("GET", f"/v1/streams/{stream}/events") as answer:
                events = sse(answer.iter_lines())
                begun = [next(events)]
                first.process.terminate()
                begun += list(events)
            assert [event["event"] for event in begun] == ["accepted"]
            assert first.process.wait(WAIT_S) == 0
        elsewhere.post(f"/v1/streams/{stream}/finish", json={"text": "a b"})
        rest = elsewhere.events(stream, after=begun[-1]["id"])
    assert [event["event"] for event in rest] == ["token", "token", "done"]


def test_readers_outlive_a_restart_of_redis(own_server: Any, tmp_path: Any) -> None:
    """Nothing is missing and nothing comes twice; what was told to a reader before is not told again."""
    key, route = KEYS.reply("default", "s"), KEYS.route("default", "s")

    def say(event: str, data: dict[str, Any]) -> None:
        with own_server.client() as client:
            client.xadd(key, {"event": event, "data": json.dumps(data)})

    with own_server.client() as client:
        client.hset(route, mapping={"state": "open", "attempt": 1})
    say("accepted", {"pod": "p", "attempt": 1})
    with (
        running_router(own_server.url, POOL, tmp_path, "--http-auth", "none") as router,
        Caller(router.url, None) as anybody,
    ):
        readers = [anybody.stream("GET", "/v1/streams/s/events") for _ in range(3)]
        answers = [reader.__enter__() for reader in readers]
        events = [sse(answer.iter_lines()) for answer in answers]
        assert [next(reader)["event"] for reader in events] == ["accepted"] * 3
        say("token", {"index": 0, "text": "before", "token_ids": [1]})
        assert [next(reader)["data"]["text"] for reader in events] == ["before"] * 3
        # Every second's writes are on disk before the server is killed.
        time.sleep(1.5)
        own_server.restart()
        say("token", {"index": 1, "text": "after", "token_ids": [2]})
        say("done", {"finish_reason": "stop", "usage": {}, "timings": {}})
        rest = [[(event["event"], event["data"].get("text")) for event in reader] for reader in events]
        assert rest == [[("token", "after"), ("done", None)]] * 3
        for reader in readers:
            reader.__exit__(None, None, None)
        wait_for("the router has found Redis again", lambda: anybody.get("/health").status_code == 200)
