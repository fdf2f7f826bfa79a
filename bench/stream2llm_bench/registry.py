"""The benches by name. A module is imported only when its bench runs: some of them load vLLM."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from stream2llm_bench.reporting import Bench

BENCHES = {
    "ttft": (
        "stream2llm_bench.ttft:BENCH",
        "time to first token: streaming, waiting, and vLLM's own streaming input",
    ),
    "plan": ("stream2llm_bench.plan:BENCH", "time of a scheduling step beside stock vLLM's"),
    "swap": ("stream2llm_bench.swap:BENCH", "KV blocks to host memory and back beside a raw copy"),
    "route": (
        "stream2llm_bench.route.bench:BENCH",
        "the way through the router beside the bare way through Redis: latency and throughput",
    ),
    "preemption": (
        "stream2llm_bench.preemption.bench:BENCH",
        "recomputing, swapping and choosing by cost, in virtual time and with a real model",
    ),
    "tenants": (
        "stream2llm_bench.tenants.bench:BENCH",
        "what a tenant waits beside one that floods the engine, and alone on its share, in virtual time",
    ),
    "autoscale": (
        "stream2llm_bench.autoscale.bench:BENCH",
        "a day of bursty traffic, scaled on our signals, on the KV cache alone and on the queue alone",
    ),
    "operator": (
        "stream2llm_bench.operating.bench:BENCH",
        "our operator beside a bare kopf operator, on an API server with fake nodes",
    ),
    "tracing": ("stream2llm_bench.tracing.bench:BENCH", "a router's backlog with traces beside the same without"),
    "align": ("stream2llm_bench.align.bench:BENCH", "the simulator beside the real engine, stream by stream"),
    "paper": ("stream2llm_bench.paper.bench:BENCH", "the published evaluation beside its simulation"),
    "policies": ("stream2llm_bench.policies.bench:BENCH", "our policies beside the paper's on its workloads"),
    "peers": ("stream2llm_bench.peers.bench:BENCH", "streaming beside stock vLLM, also where it is worth nothing"),
    "report": ("stream2llm_bench.rendering:BENCH", "one HTML page of what the benches have written"),
    "workloads": ("stream2llm_bench.workloads.bench:BENCH", "the generated workloads beside the published figures"),
    "prefix": ("stream2llm_bench.prefix:BENCH", "longest common prefix beside a memory comparison"),
}
"""Name → (module:attribute, what it measures)."""


def load(name: str) -> Bench:
    """The bench called `name`. Raises KeyError for an unknown name, ImportError if its packages are missing."""
    module, attribute = BENCHES[name][0].split(":")
    return cast(Bench, getattr(import_module(module), attribute))
