"""Application, router, real pod and engine, over HTTP only: every way to ask gives what one whole request gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from collecting import Collector
from http_caller import Caller, sse
from running_router import RunningRouter, make_token, running_router
from served_pod import MESSAGES, Pod, kill, start_pod
from waiting import wait_for

from stream2llm.keys import PoolKeys

pytestmark = [pytest.mark.e2e, pytest.mark.engine, pytest.mark.redis]
KEYS = PoolKeys()
API_KEY = "what-only-routers-know"
PASSWORD = "of-the-pods-redis-user"
PARAMS = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
PAGES = ["The first page.", "A second one, longer: caf\u00e9 \u5317\u4eac.", "And a third."]


@pytest.fixture(scope="module")
def tiny_text_model() -> Path:
    """Byte-level BPE and a chat template."""
    import tiny_llama

    return tiny_llama.cached("tiny-text-llama", tiny_llama.build_text)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


def watched(collector: Collector) -> tuple[str, ...]:
    return "--log-format", "json", "--traces-endpoint", collector.endpoint


@pytest.fixture(scope="module")
def pod(
    redis_server: Any, tiny_text_model: Path, tmp_path_factory: pytest.TempPathFactory, collector: Collector
) -> Iterator[Pod]:
    with redis_server.client() as client:
        client.flushall()
        client.sadd(KEYS.tenants, "acme", "globex")
        client.execute_command("ACL", "SETUSER", "server", "on", f">{PASSWORD}", "~*", "&*", "+@all")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAM2LLM_REDIS_PASSWORD", PASSWORD)
        patch.setenv("VLLM_API_KEY", API_KEY)
        url = f"redis://server@127.0.0.1:{redis_server.port}"
        folder = tmp_path_factory.mktemp("engine")
        pod = start_pod(tiny_text_model, redis_server.port, folder, "--redis", url, *watched(collector))
    yield pod
    kill(pod.process)
    with redis_server.client() as client:
        client.execute_command("ACL", "DELUSER", "server")


@pytest.fixture(scope="module")
def router(
    redis_server: Any, pod: Pod, tmp_path_factory: pytest.TempPathFactory, collector: Collector
) -> Iterator[RunningRouter]:
    options = (redis_server.url, KEYS.pool, tmp_path_factory.mktemp("router"), *watched(collector))
    with running_router(*options, STREAM2LLM_POD_API_KEY=API_KEY) as router:
        yield router


@pytest.fixture(scope="module")
def tokens(redis_server: Any, router: RunningRouter) -> dict[str, str]:
    return {tenant: make_token(redis_server.url, KEYS.pool, tenant) for tenant in ("acme", "globex")}


@pytest.fixture
def caller(router: RunningRouter, tokens: dict[str, str]) -> Iterator[Caller]:
    with Caller(router.url, tokens["acme"]) as caller:
        # A tiny model answers at once, but this machine may be busy.
        caller.timeout = 300
        yield caller


def whole(pages: list[str]) -> dict[str, Any]:
    """The request that sends everything at once."""
    context = "\n\n".join(pages)
    messages = [{**message, "content": message["content"].replace("{context}", context)} for message in MESSAGES]
    return {"model": "tiny", "messages": messages, **PARAMS}


def text_of(events: list[dict[str, Any]]) -> str:
    """The answer in the events of a reply; each index once and in order."""
    text, index = "", 0
    for event in events:
        if event["event"] == "token":
            assert event["data"]["index"] == index
            index += len(event["data"]["token_ids"])
            text += event["data"]["text"]
    assert index == PARAMS["max_tokens"]
    return text


def test_one_call_gives_what_the_pods_chat_gives(caller: Caller) -> None:
    chat = caller.post("/v1/chat/completions", json=whole(PAGES)).json()
    operations: list[dict[str, Any]] = [{"op": "open", "messages": MESSAGES, "params": PARAMS}]
    operations += [{"op": "append", "text": page} for page in PAGES]
    body = "".join(json.dumps(operation) + "\n" for operation in operations)
    with caller.stream("POST", "/v1/streams:run", content=body.encode()) as answer:
        events = list(sse(answer.iter_lines()))
    assert events[-1]["event"] == "done", events[-1]
    assert text_of(events) == chat["choices"][0]["message"]["content"]
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert events[-1]["data"]["usage"] == {name: chat["usage"][name] for name in names}


def test_several_calls_and_a_reader_that_comes_back_give_the_same(caller: Caller) -> None:
    """The context is replaced on the way, and the reader is cut off after every few events."""
    chat = caller.post("/v1/chat/completions", json=whole(PAGES)).json()
    opened = caller.post("/v1/streams", json={"messages": MESSAGES, "params": PARAMS})
    assert opened.status_code == 201, opened.text
    stream = opened.json()["stream"]
    items = [{"id": str(number), "text": page} for number, page in enumerate(PAGES)]
    for context in ([items[1]], [items[2], items[0], {"id": "1"}], [{"id": str(number)} for number in range(3)]):
        assert caller.put(f"/v1/streams/{stream}/context", json={"context": context}).status_code == 202
    assert caller.post(f"/v1/streams/{stream}/finish").status_code == 202
    events: list[dict[str, Any]] = []
    reads = 0
    while not events or events[-1]["event"] not in ("done", "error"):
        headers = {"Last-Event-ID": events[-1]["id"]} if events else {}
        with caller.stream("GET", f"/v1/streams/{stream}/events", headers=headers) as answer:
            assert answer.status_code == 200, answer.read()
            for count, event in enumerate(sse(answer.iter_lines()), 1):
                events.append(event)
                if count == 3:
                    break
        reads += 1
    assert events[-1]["event"] == "done", events[-1]
    assert reads > 1
    assert text_of(events) == chat["choices"][0]["message"]["content"]
    assert caller.events(stream) == events


def test_the_pods_endpoints_stream_and_complete_behind_tokens(caller: Caller) -> None:
    chat = caller.post("/v1/chat/completions", json=whole(PAGES)).json()
    with caller.stream("POST", "/v1/chat/completions", json={**whole(PAGES), "stream": True}) as answer:
        data = [line[6:] for line in answer.iter_lines() if line.startswith("data: ") and line != "data: [DONE]"]
    deltas = [choice["delta"] for item in data for choice in json.loads(item)["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == chat["choices"][0]["message"]["content"]
    prompt = {"model": "tiny", "prompt": "Once upon a time", **PARAMS}
    completed = caller.post("/v1/completions", json=prompt).json()["choices"][0]["text"]
    operations = [{"op": "open", "prompt": "Once {context} a time", "params": PARAMS}, {"op": "append", "text": "upon"}]
    body = "".join(json.dumps(operation) + "\n" for operation in operations)
    with caller.stream("POST", "/v1/streams:run", content=body.encode()) as answer:
        assert text_of(list(sse(answer.iter_lines()))) == completed
    assert caller.get("/v1/models").json()["data"][0]["id"] == "tiny"


def test_nobody_gets_anything_without_a_token_and_nobody_reads_another_s(
    router: RunningRouter, caller: Caller, tokens: dict[str, str]
) -> None:
    stream = caller.post("/v1/streams", json={"prompt": "{context}", "params": PARAMS}).json()["stream"]
    assert caller.post(f"/v1/streams/{stream}/finish", json={"text": "mine"}).status_code == 202
    assert caller.events(stream)[-1]["event"] == "done"
    with Caller(router.url, None) as nobody, Caller(router.url, tokens["globex"]) as other:
        assert other.get(f"/v1/streams/{stream}/events").status_code == 410
        for answer in (
            nobody.post("/v1/chat/completions", json=whole(PAGES)),
            nobody.get("/v1/models"),
            nobody.post("/v1/streams", json={"prompt": "{context}"}),
            nobody.post("/v1/streams:run", content=b'{"op": "open", "prompt": "{context}"}\n'),
            nobody.get(f"/v1/streams/{stream}/events"),
        ):
            assert answer.status_code == 401


def test_the_pods_key_is_wanted_and_no_secret_is_logged(
    router: RunningRouter, pod: Pod, caller: Caller, tokens: dict[str, str]
) -> None:
    assert caller.get("/v1/models").status_code == 200
    assert pod.get("/v1/models")[0] == 401
    arguments = [Path(f"/proc/{pid}/cmdline").read_text() for pid in (pod.process.pid, router.process.pid)]
    for secret in (API_KEY, PASSWORD, *tokens.values()):
        for told in (pod.log_text(), router.said(), *arguments):
            assert secret not in told


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_trace_goes_from_ingress_to_the_first_token(caller: Caller, collector: Collector) -> None:
    body = {"messages": MESSAGES, "params": PARAMS}
    stream = caller.post("/v1/streams", json=body, headers={"traceparent": PARENT}).json()["stream"]
    caller.post(f"/v1/streams/{stream}/finish", json={"text": PAGES[0]})
    assert caller.events(stream)[-1]["event"] == "done"
    names = ("router.forward", "pod.intake", "pod.prefill", "pod.first_token")
    wait_for("all spans", lambda: len(collector.of_stream(stream)) == len(names))
    spans = collector.of_stream(stream)
    assert {span.trace_id for span in spans.values()} == {"0af7651916cd43dd8448eb211c80319c"}
    root = spans["router.forward"]
    assert root.parent_id == "b7ad6b7169203331"
    assert {spans[name].parent_id for name in names[1:]} == {root.span_id}
    assert {name: spans[name].service for name in names} == dict(
        zip(names, ("stream2llm-router", *["stream2llm-pod"] * 3), strict=True)
    )
    # The open's arrival in Redis begins both; the prefill goes over into the wait for the first token.
    assert spans["pod.intake"].start_ns == root.start_ns
    assert spans["pod.intake"].end_ns <= spans["pod.first_token"].end_ns
    assert spans["pod.prefill"].start_ns == spans["pod.intake"].end_ns
    assert spans["pod.first_token"].attributes["stream2llm.tenant"] == "acme"
    assert spans["pod.first_token"].attributes["stream2llm.attempt"] == 1


def test_logs_are_json_lines_that_name_stream_and_tenant_and_no_secret(
    caller: Caller, pod: Pod, router: RunningRouter, tokens: dict[str, str]
) -> None:
    secret = "a page that nobody else may read"
    stream = caller.post("/v1/streams", json={"messages": MESSAGES, "params": PARAMS}).json()["stream"]
    caller.post(f"/v1/streams/{stream}/finish", json={"text": secret})
    caller.events(stream)

    def about_it(text: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("stream") == stream]

    # The answer is in Redis before the line is in the log.
    ended = wait_for("the pod's line", lambda: about_it(pod.log_text()))
    assert [line["tenant"] for line in ended] == ["acme"]
    assert ended[0]["message"].startswith(f"stream acme/{stream} ended: length, 24 tokens, first after ")
    assert {"time", "level", "logger"} <= set(ended[0])
    wait_for("the router's lines", lambda: len(about_it(router.said())) == 3)
    assert {line["tenant"] for line in about_it(router.said())} == {"acme"}
    everything = pod.log_text() + router.said()
    for hidden in (secret, PASSWORD, API_KEY, *tokens.values()):
        assert hidden not in everything
