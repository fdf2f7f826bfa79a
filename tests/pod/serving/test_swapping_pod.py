"""A real pod whose open streams do not fit the KV cache: they are swapped, and answered as if there were room."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from served_pod import Pod, answer_ids, kill, start_pod
from waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.engine]

STREAMS, PIECES = 4, 3
BLOCK_TOKENS = 32
PARAMS = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
# 640 tokens of KV cache; each of the four streams grows past 250.
ARGUMENTS = ("--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", "20", "--no-enable-prefix-caching")


@pytest.fixture
def pod(tiny_text_model: Path, valkey_server: Any, tmp_path: Path) -> Iterator[Pod]:
    swapping = ("--preemption", "swap", "--swap-space", "64MiB", "--max-model-len", "512")
    running = start_pod(tiny_text_model, valkey_server.port, tmp_path, *ARGUMENTS, *swapping, name="pod-swap")
    try:
        yield running
    finally:
        kill(running.process)


def total(pod: Pod, name: str, **labels: str) -> float:
    _, text = pod.get("/metrics")
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return sum(sample.value for sample in samples if sample.name == name and labels.items() <= sample.labels.items())


def piece(stream: int, number: int) -> str:
    return f"stream {stream} piece {number} " + "words and words " * 12


def kv_bytes_per_token(model: Path) -> int:
    config = json.loads((model / "config.json").read_text())
    head_size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    keys_and_values, float32_bytes = 2, 4
    return int(
        keys_and_values * config["num_hidden_layers"] * config["num_key_value_heads"] * head_size * float32_bytes
    )


def context(stream: int, pieces: int) -> str:
    return "\n\n".join(piece(stream, number) for number in range(pieces))


def tokens(pod: Pod, text: str) -> int:
    return int(pod.post("/tokenize", {"model": "tiny", "prompt": text})["count"])


def test_streams_that_overflow_the_kv_cache_are_swapped_and_answered(pod: Pod, tiny_text_model: Path) -> None:
    router = pod.router()
    streams = [f"swap-{i}" for i in range(STREAMS)]
    for stream in streams:
        router.open(stream, prompt="Say {context} now", params=PARAMS)
    for number in range(PIECES):
        for i, stream in enumerate(streams):
            router.send(stream, "append", text=piece(i, number))
        # The next piece finds streams that are parked, or swapped out for want of blocks.
        wanted = STREAMS * tokens(pod, context(0, number + 1)) * 0.9
        wait_for("the pieces are computed", lambda n=wanted: total(pod, "stream2llm_prefill_tokens_total") >= n, 120)
    for stream in streams:
        router.send(stream, "finish")
    done = {stream: router.ended(stream, 240) for stream in streams}
    for i, stream in enumerate(streams):
        assert done[stream][-1][0] == "done", done[stream][-1]
        prompt = f"Say {context(i, PIECES)} now"
        body = {"model": "tiny", "prompt": prompt, "return_token_ids": True, **PARAMS}
        assert answer_ids(done[stream]) == pod.post("/v1/completions", body)["choices"][0]["token_ids"]
    swaps = total(pod, "stream2llm_preemptions_total", kind="swap")
    assert swaps >= 1
    assert total(pod, "stream2llm_preemptions_total", kind="recompute") == 0
    assert total(pod, "stream2llm_recomputed_tokens_total") == 0
    out, back = (total(pod, "stream2llm_swapped_bytes_total", direction=direction) for direction in ("out", "in"))
    assert out == back
    # Whole blocks are copied: each swap may move up to one token short of a block more than it holds.
    blocks = out / (BLOCK_TOKENS * kv_bytes_per_token(tiny_text_model))
    assert blocks == int(blocks)
    swapped = sum(events[-1][1]["timings"]["swapped_tokens"] for events in done.values())
    assert swapped <= blocks * BLOCK_TOKENS < swapped + swaps * BLOCK_TOKENS
