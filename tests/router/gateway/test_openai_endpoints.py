"""The pods' OpenAI endpoints behind the gateway: tokens, salts, streams, failures."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from http_caller import KEYS, POOL, Caller
from running_router import running_router
from standin_pod import StandInPod

from stream2llm.heartbeats import Pod
from stream2llm_router.gateway.openai_routes import tenants_payload
from stream2llm_router.gateway.pods import choose_for_request, usable
from stream2llm_router.gateway.problems import Problem

CHAT = {"model": "stand-in", "messages": [{"role": "user", "content": "Hi"}]}


def pod_at(name: str, **changes: Any) -> Pod:
    values: dict[str, Any] = {
        "name": name,
        "incarnation": f"{name}-1",
        "protocol": 1,
        "state": "ready",
        "max_open_streams": 1,
        "open_streams": 0,
        "backlog_tokens": 0,
        "kv_usage": 0.0,
        "prefill_tokens_per_s": 1000.0,
        "beat_ms": 100_000,
        "url": f"http://{name}:8000",
    }
    return Pod(**(values | changes))


@pytest.mark.parametrize(
    ("pods", "in_flight", "without", "chosen"),
    [
        ([], {}, (), None),
        ([pod_at("a", url="")], {}, (), None),
        ([pod_at("a", state="draining")], {}, (), None),
        ([pod_at("a", beat_ms=90_000)], {}, (), None),
        ([pod_at("a", protocol=9, open_streams=1)], {}, (), "a"),
        ([pod_at("a", backlog_tokens=9), pod_at("b")], {}, (), "b"),
        ([pod_at("a"), pod_at("b")], {"http://a:8000": 1}, (), "b"),
        ([pod_at("a"), pod_at("b")], {}, ("http://a:8000",), "b"),
        ([pod_at("a"), pod_at("b", models=frozenset({"m"}), backlog_tokens=99)], {}, (), "b"),
    ],
)
def test_choice_of_pod(
    pods: list[Pod], in_flight: dict[str, int], without: tuple[str, ...], chosen: str | None
) -> None:
    found = choose_for_request(pods, 100_000, in_flight, model="m", without=without)
    assert (found.name if found else None) == chosen


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://10.0.0.1:8000", True),
        ("https://[fd00::1]:8000/", True),
        ("", False),
        ("file:///etc/passwd", False),
        ("http://", False),
        ("http://h:0", False),
        ("http://h:99999", False),
        ("http://user@h", False),
        ("http://h/path", False),
        ("http://h?x=1", False),
    ],
)
def test_a_heartbeat_names_a_server_and_nothing_else(url: str, expected: bool) -> None:
    assert usable(url) is expected


def test_what_a_tenant_sends_is_salted_with_its_name() -> None:
    whose = {"stream2llm_tenant": "acme", "stream2llm_weight": 3.0}
    assert tenants_payload("/v1/completions", {"prompt": "x", "request_id": "a"}, "acme", 3.0) == {
        "prompt": "x",
        "cache_salt": "acme",
        "vllm_xargs": whose,
    }
    own_salt = tenants_payload("/v1/chat/completions", {"cache_salt": "own"}, "acme", 3.0)
    assert own_salt == {"cache_salt": "acme:own", "vllm_xargs": whose}
    assert tenants_payload("/v1/embeddings", {"input": "x"}, "acme") == {"input": "x"}
    for payload, field in (({"cache_salt": 5}, "cache_salt"), ({"kv_transfer_params": {}}, "kv_transfer_params")):
        with pytest.raises(Problem) as caught:
            tenants_payload("/v1/completions", payload, "acme")
        assert (caught.value.status_code, caught.value.field) == (422, field)


def test_nobody_chooses_its_tenant_or_weight_itself() -> None:
    asked = {"stream2llm_tenant": "rival", "stream2llm_weight": 1000.0, "mine": 1}
    payload = tenants_payload("/v1/completions", {"vllm_xargs": asked}, "acme", 0.5)
    assert payload["vllm_xargs"] == {"mine": 1, "stream2llm_tenant": "acme", "stream2llm_weight": 0.5}
    assert tenants_payload("/v1/completions", {"vllm_xargs": ["x"]}, "acme")["vllm_xargs"] == ["x"]


@pytest.mark.e2e
@pytest.mark.redis
def test_requests_and_models_pass(acme: Caller, pod: StandInPod) -> None:
    assert acme.get("/v1/models").json()["data"][0]["id"] == "stand-in"
    answer = acme.post("/v1/chat/completions", json=CHAT, headers={"X-Request-Id": "mine", "Cookie": "a=b"})
    assert (answer.status_code, answer.json()["path"]) == (200, "/v1/chat/completions")
    assert answer.headers["x-request-id"] == "mine"
    seen = pod.requests[-1]
    whose = {"stream2llm_tenant": "acme", "stream2llm_weight": 1.0}
    assert seen["payload"] == CHAT | {"cache_salt": "acme", "vllm_xargs": whose}
    headers = {name.lower(): value for name, value in seen["headers"].items()}
    assert "authorization" not in headers
    assert "cookie" not in headers
    assert headers["x-request-id"].startswith("mine-")
    for path in ("/v1/completions", "/v1/embeddings"):
        assert acme.post(path, json={"model": "stand-in"}).json()["path"] == path
    answer = acme.post("/v1/chat/completions", json=CHAT | {"model": "unknown"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, "no such model")


@pytest.mark.e2e
@pytest.mark.redis
def test_nothing_else_of_a_pod_is_reached(acme: Caller, nobody: Caller, pod: StandInPod) -> None:
    before = len(pod.requests)
    for path in ("/v1/load_lora_adapter", "/reset_prefix_cache", "/v1/responses", "/v1/../collective_rpc", "/ready"):
        assert acme.post(path, json={}).status_code == 404
    assert nobody.post("/v1/chat/completions", json=CHAT).status_code == 401
    json_type = {"Content-Type": "application/json"}
    assert acme.post("/v1/chat/completions", content=b"[]", headers=json_type).status_code == 422
    assert acme.post("/v1/chat/completions", content=b"[]").status_code == 415
    assert len(pod.requests) == before


@pytest.mark.e2e
@pytest.mark.redis
def test_a_streamed_answer_comes_in_pieces_and_ends_with_its_reader(acme: Caller, pod: StandInPod) -> None:
    pod.token_delay_s = 0.02
    try:
        with acme.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True, "max_tokens": 5}) as answer:
            assert answer.headers["content-type"] == "text/event-stream"
            data = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
        texts = [json.loads(item)["choices"][0]["delta"]["content"] for item in data[:-1]]
        assert texts == ["t0 ", "t1 ", "t2 ", "t3 ", "t4 "]
        assert data[-1] == "[DONE]"
        pod.aborted.clear()
        with acme.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True, "max_tokens": 2000}) as answer:
            assert next(answer.iter_lines())
        assert pod.aborted.wait(30), "the pod notices that nobody reads"
    finally:
        pod.token_delay_s = 0.0
    give_up_s = time.monotonic() + 30
    while acme.get("/status.json").json()["http"]["requests"]:
        assert time.monotonic() < give_up_s
        time.sleep(0.02)


@pytest.mark.e2e
@pytest.mark.redis
def test_a_dead_pod_is_passed_over_and_none_at_all_is_told(
    acme: Caller, pod: StandInPod, redis_server: Any, tmp_path: Any
) -> None:
    with redis_server.client() as client:
        seconds, _ = client.time()
        beat = json.loads(client.hget(KEYS.pods, pod.name))
        dead = beat | {"incarnation": "dead", "url": "http://127.0.0.1:9", "time_ms": seconds * 1000 + 60_000}
        # Before the living one in the alphabet, and so the first choice.
        client.hset(KEYS.pods, "a-dead", json.dumps(dead | {"state": "ready"}))
        try:
            time.sleep(1.1)
            assert acme.post("/v1/chat/completions", json=CHAT).status_code == 200
        finally:
            client.hdel(KEYS.pods, "a-dead")
        empty = f"{POOL}-empty"
    with (
        running_router(redis_server.url, empty, tmp_path, "--http-auth", "none") as router,
        Caller(router.url, None) as anybody,
    ):
        answer = anybody.post("/v1/chat/completions", json=CHAT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
        assert answer.headers["retry-after"] == "2"


@pytest.mark.e2e
@pytest.mark.redis
def test_pods_get_the_key_that_they_want(
    redis_server: Any, pod: StandInPod, tokens: dict[str, str], tmp_path: Any
) -> None:
    key = tmp_path / "key"
    key.write_text("pods-own-key\n")
    with (
        running_router(redis_server.url, POOL, tmp_path, "--pod-api-key-file", str(key)) as router,
        Caller(router.url, tokens["acme"]) as acme,
    ):
        assert acme.get("/v1/models").status_code == 200
        headers = {name.lower(): value for name, value in pod.requests[-1]["headers"].items()}
        assert headers["authorization"] == "Bearer pods-own-key"
        assert "pods-own-key" not in router.said()
