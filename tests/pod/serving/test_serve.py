"""A real pod: streams through its log give what the same server's OpenAI endpoints give for the whole text."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from served_pod import COMMAND, MESSAGES, Pod, StandInRouter, answer_ids, answer_text, kill, start_pod
from waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.engine]

PARAMS = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
WORDS = [
    "the",
    "stream",
    "of",
    "documents",
    "arrives",
    "—",
    "naïve",
    "café,",
    "北京",
    "<|end|>",
    "in",
    "pieces\tand\nlines;",
    "",
    "twice",
    "",
    "over",
    "12345",
    "🙂",
]


def some_text(seed: int, words: int) -> str:
    chooser = random.Random(seed)
    return " ".join(chooser.choice(WORDS) for _ in range(words))


def asked_at_once(pod: Pod, context: str, params: dict[str, Any] = PARAMS) -> dict[str, Any]:
    """Stock: one chat completion with the whole text."""
    messages = [{**message, "content": message["content"].replace("{context}", context)} for message in MESSAGES]
    body = {"model": "tiny", "messages": messages, "return_token_ids": True, **params}
    return pod.post("/v1/chat/completions", body)


def same(events: list[tuple[str, dict[str, Any]]], stock: dict[str, Any]) -> None:
    choice = stock["choices"][0]
    assert events[-1][0] == "done", events[-1]
    assert answer_ids(events) == choice["token_ids"]
    assert answer_text(events) == choice["message"]["content"]
    done = events[-1][1]
    assert done["finish_reason"] == choice["finish_reason"]
    assert done["usage"] == {name: stock["usage"][name] for name in done["usage"]}
    assert done["usage"]["prompt_tokens"] == len(stock["prompt_token_ids"])


@pytest.mark.parametrize("seed", range(4))
def test_append_equals_one_request(pod: Pod, router: StandInRouter, seed: int) -> None:
    chunks = [some_text(10 * seed + i, 30) for i in range(5)]
    stream = f"append-{seed}"
    router.open(stream, messages=MESSAGES, params=PARAMS)
    for chunk in chunks:
        router.send(stream, "append", text=chunk)
        time.sleep(0.05)
    router.send(stream, "finish")
    events = router.ended(stream)
    same(events, asked_at_once(pod, "\n\n".join(chunks)))
    assert events[0] == ("accepted", {"pod": "pod-a", "attempt": 1})
    timings = events[-1][1]["timings"]
    assert timings["prefilled_before_finish_tokens"] > 0
    assert timings["open_to_first_token_ms"] == timings["open_to_finish_ms"] + timings["ttft_ms"]
    assert timings["attempts"] == 1


def test_update_equals_one_request(pod: Pod, router: StandInRouter) -> None:
    router.open("update", messages=MESSAGES, params=PARAMS)
    a, b, c = (some_text(seed, 40) for seed in (100, 101, 102))
    router.send("update", "update", context=[{"id": "a", "text": a}], version="1")
    time.sleep(0.1)
    router.send("update", "update", context=[{"id": "b", "text": b}, {"id": "a"}], version="3")
    time.sleep(0.1)
    router.send("update", "update", context=[{"id": "a"}], version="2")
    router.send("update", "update", context=[{"id": "nobody"}])
    router.send("update", "append", text=c, chunk="c")
    router.send("update", "finish")
    events = router.ended("update")
    errors = [data for event, data in events if event == "error"]
    assert [error["code"] for error in errors] == ["unknown_item"]
    assert not errors[0]["terminal"]
    same([event for event in events if event[0] != "error"], asked_at_once(pod, "\n\n".join([b, a, c])))


def test_prompt_equals_one_completion(pod: Pod, router: StandInRouter) -> None:
    text = some_text(7, 60)
    router.open("prompt", prompt="{context}\nSummary:", params=PARAMS)
    router.send("prompt", "append", text=text[:100])
    router.send("prompt", "finish", text=text[100:])
    events = router.ended("prompt")
    body = {"model": "tiny", "prompt": f"{text[:100]}\n\n{text[100:]}\nSummary:", "return_token_ids": True, **PARAMS}
    stock = pod.post("/v1/completions", body)["choices"][0]
    assert answer_ids(events) == stock["token_ids"]
    assert events[-1][1]["usage"]["prompt_tokens"] == len(stock["prompt_token_ids"])


def test_tokens_go_as_they_are(pod: Pod, router: StandInRouter) -> None:
    ids = [random.Random(5).randrange(300) for _ in range(90)]
    router.open("tokens", prompt="{context}", params=PARAMS)
    router.send("tokens", "append", tokens=ids[:50])
    router.send("tokens", "append", text="no text here")
    router.send("tokens", "append", tokens=[10**6])
    router.send("tokens", "finish", tokens=ids[50:])
    events = router.ended("tokens")
    assert [data["code"] for event, data in events if event == "error"] == ["mixed_input", "malformed"]
    body = {"model": "tiny", "prompt": ids, "return_token_ids": True, **PARAMS}
    assert answer_ids(events) == pod.post("/v1/completions", body)["choices"][0]["token_ids"]


def test_structured_output_and_stop(pod: Pod, router: StandInRouter) -> None:
    params = {"temperature": 0, "max_tokens": 20, "structured_outputs": {"choice": ["yes", "no"]}}
    router.open("choice", messages=MESSAGES, params=params)
    router.send("choice", "append", text="First.")
    time.sleep(0.2)
    router.send("choice", "finish", text="Second.")
    events = router.ended("choice")
    assert answer_text(events) == asked_at_once(pod, "First.\n\nSecond.", params)["choices"][0]["message"]["content"]
    assert answer_text(events) in ("yes", "no")


@pytest.mark.parametrize(
    ("params", "code", "field"),
    [
        ({"n": 2}, "unsupported_params", "params.n"),
        ({"tools": [{"type": "function"}]}, "unsupported_params", "params.tools"),
        ({"prompt_logprobs": 1}, "unsupported_params", "params.prompt_logprobs"),
        ({"temperature": -1}, "invalid_params", "params.temperature"),
        ({"temperature": "hot"}, "invalid_params", "params.temperature"),
        ({"max_tokens": 0}, "invalid_params", "params.max_tokens"),
        ({"max_tokens": 10**9}, "invalid_params", "params.max_tokens"),
        ({"top_p": 3}, "invalid_params", "params.top_p"),
        ({"wisdom": 1}, "invalid_params", "params.wisdom"),
        ({"logit_bias": {"999999": 1}}, "invalid_params", None),
        ({"response_format": {"type": "json_schema"}}, "invalid_params", "params.response_format"),
        ({"structured_outputs": {"regex": "(("}}, "invalid_params", None),
        ({"model": "llama"}, "unknown_model", "params.model"),
    ],
)
def test_bad_parameters_end_their_stream_only(
    pod: Pod, router: StandInRouter, params: dict[str, Any], code: str, field: str | None
) -> None:
    stream = f"bad-{abs(hash(json.dumps(params)))}"
    router.open(stream, messages=MESSAGES, params=params)
    event, data = router.ended(stream)[-1]
    assert (event, data["code"], data["terminal"]) == ("error", code, True), data
    if field:
        assert data["field"] == field
    assert pod.get("/health")[0] == 200


def test_context_too_long_is_terminal(pod: Pod, router: StandInRouter) -> None:
    router.open("long", messages=MESSAGES)
    router.send("long", "append", text="word " * 5000)
    event, data = router.ended("long")[-1]
    assert (event, data["code"], data["terminal"]) == ("error", "context_too_long", True)


def test_repeats_and_late_chunks(pod: Pod, router: StandInRouter) -> None:
    router.open("repeat", messages=MESSAGES, params=PARAMS)
    with router.together():
        for _ in range(2):
            router.send("repeat", "append", text="One.", chunk="1")
        router.send("repeat", "finish", expect="3")
        router.send("repeat", "append", text="Two.", chunk="2")
        router.send("repeat", "append", text="Two.", chunk="2")
        router.send("repeat", "append", text="Three.", chunk="3")
        router.send("repeat", "append", text="Four.", chunk="4")
        router.send("repeat", "finish")
    events = router.ended("repeat")
    assert [data["code"] for event, data in events if event == "error"] == ["chunk_after_finish"]
    same([event for event in events if event[0] != "error"], asked_at_once(pod, "One.\n\nTwo.\n\nThree."))


def test_cancel_idle_timeout_and_deadline(pod: Pod, router: StandInRouter) -> None:
    router.open("cancel", messages=MESSAGES)
    router.send("cancel", "append", text="Some text that is here already.")
    router.send("cancel", "cancel")
    router.open("idle", messages=MESSAGES, options={"idle_timeout_ms": 300})
    router.open("dead", messages=MESSAGES, options={"deadline_ms": 300})
    router.open("enough", messages=MESSAGES, params=PARAMS, options={"deadline_ms": 500, "on_timeout": "finish"})
    router.send("enough", "append", text="This must do.")
    assert router.ended("cancel")[-1][1]["finish_reason"] == "cancelled"
    assert router.ended("idle")[-1][1]["code"] == "idle_timeout"
    assert router.ended("dead")[-1][1]["code"] == "deadline"
    same(router.ended("enough"), asked_at_once(pod, "This must do."))
    route = router.client.hgetall(router.keys.route("default", "cancel"))
    assert route[b"state"] == b"ended"
    assert not router.client.exists(router.keys.entries("default", "cancel"))
    assert 0 < router.client.ttl(router.keys.reply("default", "cancel")) <= 600


def test_cancel_while_generating(pod: Pod, router: StandInRouter) -> None:
    router.open("cut", messages=MESSAGES, params={"temperature": 0, "ignore_eos": True})
    router.send("cut", "finish", text="Go on for long.")
    wait_for("first token", lambda: any(event == "token" for event, _ in router.events("cut")))
    router.send("cut", "cancel")
    events = router.ended("cut")
    assert events[-1][1]["finish_reason"] == "cancelled"
    assert events[-1][1]["usage"]["completion_tokens"] == len(answer_ids(events))


def test_fenced_stream_is_dropped_in_silence(pod: Pod, router: StandInRouter) -> None:
    router.open("moved", messages=MESSAGES, params=PARAMS)
    router.send("moved", "append", text="Something.")
    wait_for("accepted", lambda: router.events("moved"))
    router.client.hset(router.keys.route("default", "moved"), "attempt", 2)
    before = router.events("moved")
    router.send("moved", "finish")
    wait_for("dropped", lambda: json.loads(pod.get("/ready")[1])["open_streams"] == 0)
    assert [event for event, _ in router.events("moved")] == [event for event, _ in before]


def test_missed_log_entries_are_read_from_the_stream(pod: Pod, router: StandInRouter) -> None:
    router.open("gap", messages=MESSAGES, params=PARAMS)
    router.send("gap", "append", text="First.", log=False)
    router.send("gap", "append", text="Second.", log=False)
    router.send("gap", "finish")
    same(router.ended("gap"), asked_at_once(pod, "First.\n\nSecond."))


def test_metrics_and_trimmed_log(pod: Pod, router: StandInRouter) -> None:
    text = pod.get("/metrics")[1]
    labels = 'namespace="default",pod="pod-a",pool="default"'
    for series in (
        f"stream2llm_ttft_seconds_count{{{labels}}}",
        f"stream2llm_open_to_first_token_seconds_count{{{labels}}}",
        f"stream2llm_prefilled_before_finish_ratio_count{{{labels}}}",
        f'stream2llm_open_streams{{{labels},state="open"}}',
        f"stream2llm_intake_lag_seconds{{{labels}}}",
        f"stream2llm_pod_ready_timestamp_seconds{{{labels}}}",
        f"stream2llm_pod_draining{{{labels}}} 0.0",
    ):
        assert series in text, series
    assert "stream2llm_rejected_total" in text
    assert router.client.xlen(router.log) == 0


def cpu_s(pod: Pod) -> tuple[float, float]:
    """Seconds of CPU that the pod's processes have used, and how many of them in gloo's event loops.

    torch.distributed starts one such thread per process group, which polls a hundred times a second in every vLLM
    server on CPU, streams or not.
    """
    parent = psutil.Process(pod.process.pid)
    total_s = gloo_s = 0.0
    for process in [parent, *parent.children(recursive=True)]:
        total_s += sum(process.cpu_times()[:2])
        for thread in process.threads():
            if Path(f"/proc/{process.pid}/task/{thread.id}/comm").read_text().startswith("gloo_tcp"):
                gloo_s += thread.user_time + thread.system_time
    return total_s, gloo_s


def test_idle_pod_sleeps(pod: Pod, router: StandInRouter) -> None:
    for i in range(20):
        router.open(f"parked-{i}", messages=MESSAGES)
        router.send(f"parked-{i}", "append", text=some_text(i, 20))
    wait_for("20 open", lambda: json.loads(pod.get("/ready")[1])["open_streams"] == 20)
    time.sleep(3)
    start_s, (before_s, before_gloo_s) = time.monotonic(), cpu_s(pod)
    time.sleep(10)
    (after_s, after_gloo_s), elapsed_s = cpu_s(pod), time.monotonic() - start_s
    gloo = (after_gloo_s - before_gloo_s) / elapsed_s
    share = (after_s - before_s) / elapsed_s - gloo
    print(
        f"\nCPU of an idle pod with 20 open streams over 10 s: {share:.2%} of a core, and {gloo:.2%} in gloo's threads"
    )
    for i in range(20):
        router.send(f"parked-{i}", "cancel")
    for i in range(20):
        assert router.ended(f"parked-{i}")[-1][1]["finish_reason"] == "cancelled"
    assert share < 0.02


def test_drain_finishes_open_streams(tiny_text_model: Path, valkey_server: Any, tmp_path: Path) -> None:
    pod = start_pod(tiny_text_model, valkey_server.port, tmp_path, "--drain-seconds", "60", name="pod-drain")
    try:
        router = pod.router()
        router.open("last", messages=MESSAGES, params=PARAMS)
        router.send("last", "append", text="Almost done.")
        wait_for("accepted", lambda: router.events("last"))
        pod.process.send_signal(signal.SIGTERM)
        wait_for("not ready", lambda: pod.get("/ready")[0] == 503)

        def state() -> str:
            return str(json.loads(router.client.hget(router.keys.pods, "pod-drain") or b"{}")["state"])

        wait_for("heartbeat says so", lambda: state() == "draining")
        assert pod.process.poll() is None
        want = asked_at_once(pod, "Almost done.\n\nDone.")
        router.send("last", "finish", text="Done.")
        same(router.ended("last"), want)
        assert pod.process.wait(30) == 0, pod.log_text()[-3000:]
        assert not router.client.hexists(router.keys.pods, "pod-drain")
        assert not router.client.exists(router.log)
    finally:
        kill(pod.process)


def test_second_signal_ends_at_once(tiny_text_model: Path, valkey_server: Any, tmp_path: Path) -> None:
    pod = start_pod(tiny_text_model, valkey_server.port, tmp_path, name="pod-twice")
    try:
        router = pod.router()
        router.open("stuck", messages=MESSAGES)
        wait_for("accepted", lambda: router.events("stuck"))
        children = psutil.Process(pod.process.pid).children(recursive=True)
        pod.process.send_signal(signal.SIGTERM)
        wait_for("draining", lambda: pod.get("/ready")[0] == 503)
        pod.process.send_signal(signal.SIGTERM)
        assert pod.process.wait(60) == 128 + signal.SIGTERM
        _gone, alive = psutil.wait_procs(children, timeout=60)
        assert not alive, alive
    finally:
        kill(pod.process)


def test_start_says_what_is_wrong(pod: Pod, tiny_text_model: Path, valkey_server: Any) -> None:
    def refusal(*arguments: str, **environment: str) -> str:
        command = [*COMMAND, "serve", "--model", str(tiny_text_model), *arguments]
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment}, check=False
        )
        assert answer.returncode == 2, answer.stderr
        return answer.stderr

    own_redis = f"redis://127.0.0.1:{valkey_server.port}"
    port = pod.url.rsplit(":", 1)[1]
    assert f"port {port}" in refusal("--redis", own_redis, "--host", "127.0.0.1", "--port", port)
    assert "--model /nowhere: there is no such folder" in refusal("--redis", own_redis, "--model", "/nowhere")
    assert "must be from 1 to 86400, not 0" in refusal("--redis", own_redis, "--idle-timeout-seconds", "0")
    assert "--scheduler-cls cannot be given" in refusal("--redis", own_redis, "--scheduler-cls", "x.Y")
    assert "cannot be reached" in refusal("--redis", "redis://127.0.0.1:1", "--port", "18000")
    client = valkey_server.client()
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        assert "noeviction" in refusal("--redis", own_redis, "--port", "18000")
    finally:
        client.config_set("maxmemory-policy", "noeviction")
