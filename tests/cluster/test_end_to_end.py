"""The whole product in real pods: chart, resource, profile, pods, and questions through Redis."""

from __future__ import annotations

import json
from typing import Any

import cpu_pool
import pytest
from pools import Pool
from waiting import wait_for

pytestmark = pytest.mark.kubernetes

PARAMS = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
PROMPT = "Read this.\n\n{context}\n\nQuestion: what is it about?\nAnswer:"
PAGES = [f"Page {n}: " + " ".join(f"word{n * i % 97} and {i}" for i in range(12)) for n in range(1, 5)]


def answer(pool: Pool, stream: str) -> tuple[str, dict[str, Any]]:
    """The text of the reply and the data of its last event, once it has ended."""
    wait_for(f"stream {stream} ends", lambda: pool.events(stream)[-1:] and ended(pool.events(stream)[-1]), 300)
    events = pool.events(stream)
    assert [data for kind, data in events if kind == "error"] == []
    return "".join(data["text"] for kind, data in events if kind == "token"), events[-1][1]


def ended(event: tuple[str, dict[str, Any]]) -> bool:
    return event[0] == "done" or (event[0] == "error" and bool(event[1]["terminal"]))


def one_shot(pool: Pool, context: str) -> tuple[str, int]:
    """What stock vLLM's endpoint of the same pod answers to the whole prompt, and how many tokens it had."""
    whole = PROMPT.replace("{context}", context)
    found = pool.post("/v1/completions", {"model": "tiny", "prompt": whole, **PARAMS})
    return found["choices"][0]["text"], found["usage"]["prompt_tokens"]


def test_from_chart_to_answer_and_back(pool: Pool) -> None:
    pool.apply(cpu_pool.spec())
    pool.wait("Profiled")
    assert pool.condition("Profiled")[1] == "Measured"
    pool.wait("Ready")
    assert pool.condition("Ready")[:2] == ("True", "Serving")
    status = pool.get("spf")["status"]
    profile = json.loads(pool.get("configmap", status["costProfile"]["configMap"])["data"]["profile.json"])
    assert (profile["gpu"], profile["source"]) == ("cpu", "measured")
    assert len(profile["swap_out"]["tokens"]) >= 2

    # Append: the context piece by piece.
    pool.send("append", "open", prompt=PROMPT, params=json.dumps(PARAMS))
    for number, page in enumerate(PAGES):
        pool.send("append", "append", chunk=f"page-{number}", text=page)
    pool.send("append", "finish", expect=str(len(PAGES)))
    text, done = answer(pool, "append")
    assert (text, done["usage"]["prompt_tokens"]) == one_shot(pool, "\n\n".join(PAGES))
    assert done["usage"]["completion_tokens"] == PARAMS["max_tokens"]

    # Update: the context is replaced while it is being read.
    pool.send("update", "open", prompt=PROMPT, params=json.dumps(PARAMS))
    first = [{"id": "a", "text": PAGES[0]}, {"id": "b", "text": PAGES[1]}]
    second = [{"id": "b"}, {"id": "c", "text": PAGES[2]}, {"id": "a"}]
    pool.send("update", "update", context=json.dumps(first), version="1")
    wait_for("the first context is read", lambda: any(kind == "prefill" for kind, _ in pool.events("update")))
    pool.send("update", "update", context=json.dumps(second), version="2")
    pool.send("update", "finish")
    text, done = answer(pool, "update")
    assert (text, done["usage"]["prompt_tokens"]) == one_shot(pool, "\n\n".join([PAGES[1], PAGES[2], PAGES[0]]))

    # And back: nothing of it stays.
    prefix = pool.key_prefix
    pool.kubectl("delete", "spf", "tiny", "--timeout=60s")
    wait_for("all objects are gone", lambda: pool.objects() == [], 240)
    assert pool.keys_without_expiry(prefix) == []
