"""A real pod goes on with an answer that another has begun: what follows is what one request would have given."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from served_pod import MESSAGES, Pod, StandInRouter, answer_ids, answer_text
from waiting import wait_for

from stream2llm.events import Accepted, Token, encode

pytestmark = [pytest.mark.e2e, pytest.mark.engine]

CONTEXT = "The river is wide. The stone is old. The lantern is lit and the harbour sleeps."
ANSWER = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def whole(pod: Pod, params: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(what a reader got of each token, the last event) of the stream that nobody interrupts."""
    router = pod.router()
    stream = f"whole-{time.monotonic_ns()}"
    router.open(stream, messages=MESSAGES, params=params)
    router.send(stream, "finish", text=CONTEXT)
    events = router.ended(stream)
    return [data for event, data in events if event == "token"], events[-1][1]


def begun(router: StandInRouter, stream: str, params: dict[str, Any], tokens: list[dict[str, Any]]) -> None:
    """A stream of which another pod has sent `tokens`, given to this one."""
    router.open(stream, messages=MESSAGES, params=params)
    wait_for("accepted", lambda: router.events(stream))
    router.client.hset(router.keys.route("default", stream), mapping={"attempt": 2, "incarnation": "another"})
    router.send(stream, "finish", text=CONTEXT, log=False)
    reply = router.keys.reply("default", stream)
    router.client.xadd(reply, encode(Accepted("another", 2)))  # type: ignore[arg-type]
    for token in tokens:
        event = Token(token["index"], token["text"], tuple(token["token_ids"]))
        router.client.xadd(reply, encode(event))  # type: ignore[arg-type]
    sent = sum(len(token["token_ids"]) for token in tokens)
    router.client.hset(router.keys.route("default", stream), mapping={"next_token": sent, "prompt_seq": 2})
    router.adopt(stream, 3)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("plain", ANSWER),
        ("minimum", ANSWER | {"min_tokens": 20, "ignore_eos": False}),
        ("frequency", ANSWER | {"frequency_penalty": 0.7}),
        ("repetition", ANSWER | {"repetition_penalty": 1.3}),
        ("bias", ANSWER | {"frequency_penalty": 0.4, "logit_bias": {"300": 2.5}}),
        ("schema", {"temperature": 0, "max_tokens": 24, "response_format": {"type": "json_schema", "json_schema": {
            "name": "s", "schema": SCHEMA}}}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("share", [0.1, 0.6])
def test_the_rest_of_the_answer(
    pod: Pod, router: StandInRouter, name: str, params: dict[str, Any], share: float
) -> None:
    tokens, last = whole(pod, params)
    carried = tokens[: max(int(len(tokens) * share), 1)]
    stream = f"rest-{name}-{share}"
    begun(router, stream, params, carried)
    events = router.ended(stream)
    assert events[-1][0] == "done", events[-1]
    assert answer_ids(events) == [token_id for token in tokens for token_id in token["token_ids"]]
    assert answer_text(events) == "".join(token["text"] for token in tokens)
    assert events[-1][1]["finish_reason"] == last["finish_reason"]
    assert events[-1][1]["usage"] == last["usage"]
    assert events[-1][1]["timings"]["attempts"] == 3


def test_a_stop_string_that_begins_in_what_was_sent(pod: Pod, router: StandInRouter) -> None:
    tokens, _ = whole(pod, ANSWER)
    texts = [token["text"] for token in tokens]
    # Three tokens' text that is first there when the last of them comes, so that it stops in the middle of the answer.
    candidates = ((end, "".join(texts[end - 3 : end])) for end in range(4, len(texts)))
    stop = next(text for end, text in candidates if len(text) > 2 and text not in "".join(texts[: end - 1]))
    params = ANSWER | {"stop": [stop]}
    tokens, last = whole(pod, params)
    assert last["finish_reason"] == "stop"
    begun(router, "stop", params, tokens[:-1])
    events = router.ended("stop")
    assert answer_ids(events) == [token_id for token in tokens for token_id in token["token_ids"]]
    assert answer_text(events) == "".join(token["text"] for token in tokens)
    assert events[-1][1]["finish_reason"] == "stop"


def test_nothing_is_left_to_say(pod: Pod, router: StandInRouter) -> None:
    tokens, last = whole(pod, ANSWER)
    begun(router, "all", ANSWER, tokens)
    events = router.ended("all")
    assert events[-1][1]["finish_reason"] == "length"
    assert events[-1][1]["usage"] == last["usage"]
    assert len(answer_ids(events)) == 24


def test_entries_that_came_after_the_answer_began_change_nothing(pod: Pod, router: StandInRouter) -> None:
    """The first pod answered at a timeout with what had arrived, and refused what came later."""
    params, options = ANSWER, {"on_timeout": "finish", "idle_timeout_ms": 1_000}
    router.open("timeout", messages=MESSAGES, params=params, options=options)
    router.send("timeout", "append", text=CONTEXT)
    events = router.ended("timeout")
    tokens = [data for event, data in events if event == "token"]
    router.open("again", messages=MESSAGES, params=params, options=options | {"idle_timeout_ms": 60_000})
    wait_for("accepted", lambda: router.events("again"))
    router.client.hset(router.keys.route("default", "again"), mapping={"attempt": 2, "incarnation": "another"})
    router.send("again", "append", text=CONTEXT, log=False)
    router.send("again", "append", text="Too late.", log=False)
    ingress_id = router.client.xrange(router.keys.entries("default", "again"))[-1][1][b"ingress_id"].decode()
    reply = router.keys.reply("default", "again")
    late = {"code": "chunk_after_finish", "message": "m", "field": None, "terminal": False, "ingress_id": ingress_id}
    router.client.xadd(reply, {"event": "error", "data": json.dumps(late)})
    first = Token(0, tokens[0]["text"], tuple(tokens[0]["token_ids"]))
    router.client.xadd(reply, encode(first))  # type: ignore[arg-type]
    route = router.keys.route("default", "again")
    router.client.hset(route, mapping={"next_token": len(first.token_ids), "prompt_seq": 2})
    router.adopt("again", 3)
    events = router.ended("again")
    assert answer_text(events) == "".join(token["text"] for token in tokens)
    assert [data["code"] for event, data in events if event == "error"] == ["chunk_after_finish"]
