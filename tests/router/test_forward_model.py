"""Random histories against a model of the forwarding rules, with a crash or a lost lease between any two commands."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from stream2llm.keys import PoolKeys
from stream2llm_router.forwarding import Forwarder
from stream2llm_router.metrics import RouterMetrics
from stream2llm_router.scripts import Fenced, Stale

pytestmark = pytest.mark.redis
KEYS = PoolKeys("tests/model")
TENANT = "default"
STREAMS = ("a", "b:1", "c")
POD, INCARNATION = "pod-0", "aa"

SENT: dict[str, dict[str, Any]] = {
    "open": {"op": "open", "prompt": "one {context}"},
    "other open": {"op": "open", "prompt": "two {context}"},
    "bad open": {"op": "open", "prompt": "no marker"},
    "append": {"op": "append"},
    "update": {"op": "update", "context": "[]"},
    "finish": {"op": "finish"},
    "cancel": {"op": "cancel"},
    "bad append": {"op": "append"},
    "bad op": {"op": "shout"},
    "many fields": {"op": "append", **{f"field{i}": "" for i in range(9_000)}},
    "no stream": {"op": "append"},
}
BAD_CODES = {"bad append": "malformed", "bad op": "unknown_op", "bad open": "marker"}


@dataclass
class ModelRoute:
    state: str
    opened_by: str
    passed: list[str] = field(default_factory=list)
    assigned: bool = False


@dataclass
class Model:
    """What must be in Redis, written down without looking at the script."""

    routes: dict[str, ModelRoute] = field(default_factory=dict)
    log: list[tuple[str, str, int]] = field(default_factory=list)
    errors: dict[str, list[tuple[str, bool]]] = field(default_factory=lambda: {s: [] for s in STREAMS})
    rejected: list[str] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)

    def take(self, kind: str, stream: str, mark: str, pod: bool) -> None:
        route = self.routes.get(stream)
        if kind == "no stream":
            self.rejected.append("malformed")
        elif route is None:
            self._begin(kind, stream, mark, pod)
        elif kind in BAD_CODES:
            self._refuse(route, stream, BAD_CODES[kind])
        elif kind in ("open", "other open"):
            if kind != route.opened_by:
                self._refuse(route, stream, "open_conflict")
        elif route.state == "ended":
            if kind not in ("finish", "cancel"):
                self.rejected.append("stream_ended")
        elif kind == "cancel" and not route.assigned:
            # Nobody else would tell its reader.
            route.state, route.passed = "ended", []
            self.cancelled.add(stream)
        else:
            route.passed.append(mark)
            if kind == "finish" and route.assigned:
                route.state = "finishing"
            if route.assigned:
                self.log.append((stream, mark, len(route.passed)))

    def _begin(self, kind: str, stream: str, mark: str, pod: bool) -> None:
        if kind == "bad open":
            self.routes[stream] = ModelRoute("ended", kind)
            self.errors[stream].append(("marker", True))
        elif kind in ("open", "other open"):
            self.routes[stream] = ModelRoute("open" if pod else "held", kind, [mark], pod)
            if pod:
                self.log.append((stream, "adopt", 1))
        else:
            self.rejected.append(BAD_CODES.get(kind, "unknown_stream"))

    def _refuse(self, route: ModelRoute, stream: str, code: str) -> None:
        if route.state == "ended":
            self.rejected.append(code)
        else:
            self.errors[stream].append((code, False))

    def assign_held(self, finished: set[str], order: list[str]) -> None:
        for stream in order:
            route = self.routes[stream]
            if route.state == "held":
                route.state, route.assigned = "finishing" if stream in finished else "open", True
                self.log.append((stream, "adopt", len(route.passed)))


class World:
    """A server, the router of the moment, and the model beside them."""

    def __init__(self, client: redis.Redis) -> None:
        self.client, self.model = client, Model()
        self.queue: list[tuple[str, str, str]] = []
        self.held_order: list[str] = []
        self.finished_while_held: set[str] = set()
        self.sent = 0
        self.pod = False
        client.flushall()
        self.new_router()

    def new_router(self) -> None:
        """The last router is gone without a word and its lease has lapsed."""
        self.client.delete(KEYS.lease(TENANT), KEYS.routers)
        self.router = Forwarder(self.client, KEYS, RouterMetrics(KEYS.pool, CollectorRegistry()), block_ms=1)
        self.router._tenants = [TENANT]
        self.router._epochs = self.router.leases.hold([TENANT])
        self.router._fleet.refresh()

    def send(self, kind: str, stream: str) -> None:
        self.sent += 1
        # `chunk` is known and travels with every op, so each entry can be told from all others.
        mark = f"m{self.sent}"
        fields = SENT[kind] | {"chunk": mark} | ({} if kind == "no stream" else {"stream": stream})
        if kind in ("append", "many fields"):
            fields["text"] = "t"
        self.client.xadd(KEYS.ingress(TENANT), fields)
        self.queue.append((kind, stream, mark))

    def set_pod(self, there: bool) -> None:
        self.pod = there
        if there:
            seconds, micros = self.client.time()
            beat = {
                "incarnation": INCARNATION,
                "protocol": 1,
                "state": "ready",
                "capacity": {"max_open_streams": 10_000},
                "load": {"open_streams": 0, "backlog_tokens": 0, "kv_usage": 0},
                "time_ms": seconds * 1000 + micros // 1000,
            }
            self.client.hset(KEYS.pods, POD, json.dumps(beat))
        else:
            self.client.delete(KEYS.pods)

    def read(self, count: int) -> list[Any]:
        self.router._fleet.refresh()
        answer: Any = self.client.xread({KEYS.ingress(TENANT): "0"}, count=count)
        return answer[0][1] if answer else []

    def forward(self, count: int, fault: str) -> None:
        batch = self.read(count)
        if not batch or fault == "crash before":
            self.new_router()
            return
        if fault == "fenced":
            zombie = self.router
            self.new_router()
            with pytest.raises(Fenced):
                zombie._forward(TENANT, batch)
        if fault == "trimmed":
            self.client.xdel(KEYS.ingress(TENANT), batch[0][0])
            self.queue.pop(0)
            with pytest.raises(Stale):
                self.router._forward(TENANT, batch)
            return
        if fault == "pod left":
            # After the router has chosen it, and before the script runs.
            self.set_pod(False)
        self.router._forward(TENANT, batch)
        self._model_takes(len(batch))
        if fault == "answer lost":
            with pytest.raises(Stale):
                self.router._forward(TENANT, batch)
        elif fault == "crash after":
            self.new_router()

    def _model_takes(self, count: int) -> None:
        for kind, stream, mark in self.queue[:count]:
            before = self.model.routes.get(stream)
            self.model.take(kind, stream, mark, self.pod)
            after = self.model.routes.get(stream)
            if before is None and after is not None and after.state == "held":
                self.held_order.append(stream)
            if kind == "finish" and after is not None and after.state == "held":
                self.finished_while_held.add(stream)
        del self.queue[:count]

    def serve_held(self) -> None:
        self.router._fleet.refresh()
        self.router._holding.serve(TENANT, self.router._epochs[TENANT])
        if self.pod:
            # Those that came in the same ms are taken in the order of their names.
            held = [raw.decode() for raw in self.client.zrange(f"{KEYS.prefix}:held:{TENANT}", 0, -1)]
            assert held == []
            logged = [fields[b"stream"].decode() for fields in self.logged() if fields[b"op"] == b"adopt"]
            order = [stream for stream in logged if stream in self.held_order]
            self.model.assign_held(self.finished_while_held, order)

    def end(self, stream: str) -> None:
        """As the pod's reply script ends a stream."""
        route = self.model.routes.get(stream)
        if route is None or not route.assigned or route.state == "ended":
            return
        route.state, route.passed = "ended", []
        self.client.hset(KEYS.route(TENANT, stream), "state", "ended")
        self.client.delete(KEYS.entries(TENANT, stream))

    def logged(self) -> list[dict[bytes, bytes]]:
        return [fields for _, fields in self.client.xrange(KEYS.log(POD, INCARNATION))]

    def check(self) -> None:
        assert self.client.xlen(KEYS.ingress(TENANT)) == len(self.queue)
        seen = [
            (f[b"stream"].decode(), "adopt", int(f[b"upto"]))
            if f[b"op"] == b"adopt"
            else (f[b"stream"].decode(), f[b"chunk"].decode(), int(f[b"seq"]))
            for f in self.logged()
        ]
        assert seen == self.model.log
        assert [f[b"code"].decode() for _, f in self.client.xrange(KEYS.rejected(TENANT))] == self.model.rejected
        for stream in STREAMS:
            self._check_stream(stream)

    def _check_stream(self, stream: str) -> None:
        route = self.model.routes.get(stream)
        stored: Any = self.client.hgetall(KEYS.route(TENANT, stream))
        assert bool(stored) == (route is not None)
        if route is None:
            return
        assert stored[b"state"].decode() == route.state
        entries = [fields for _, fields in self.client.xrange(KEYS.entries(TENANT, stream))]
        assert [f[b"chunk"].decode() for f in entries] == route.passed
        assert [int(f[b"seq"]) for f in entries] == list(range(1, len(entries) + 1))
        told = [(f[b"event"], json.loads(f[b"data"])) for _, f in self.client.xrange(KEYS.reply(TENANT, stream))]
        errors = [(data["code"], data["terminal"]) for event, data in told if event == b"error"]
        assert errors == self.model.errors[stream]
        done = [data["finish_reason"] for event, data in told if event == b"done"]
        assert done == ["cancelled"] * (stream in self.model.cancelled)


# Faults are rare among the steps and frequent among the histories.
FAULTS = ("none", "crash before", "crash after", "answer lost", "fenced", "trimmed", "pod left")
STEP = st.one_of(
    st.tuples(st.just("send"), st.sampled_from(sorted(SENT)), st.sampled_from(STREAMS)),
    st.tuples(st.just("send"), st.sampled_from(("open", "append", "finish")), st.sampled_from(STREAMS)),
    st.tuples(st.just("forward"), st.integers(1, 6), st.sampled_from(FAULTS)),
    st.tuples(st.just("pod"), st.booleans()),
    st.tuples(st.just("held")),
    st.tuples(st.just("end"), st.sampled_from(STREAMS)),
)


def run_history(client: redis.Redis, steps: list[tuple[Any, ...]]) -> None:
    world = World(client)
    for step in steps:
        if step[0] == "send":
            world.send(step[1], step[2])
        elif step[0] == "forward":
            world.forward(step[1], step[2])
        elif step[0] == "pod":
            world.set_pod(step[1])
        elif step[0] == "held":
            world.serve_held()
        else:
            world.end(step[1])
        world.check()
    while world.queue:
        world.forward(100, "none")
    world.set_pod(True)
    world.serve_held()
    world.check()
    assert world.client.xlen(KEYS.ingress(TENANT)) == 0


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(STEP, max_size=40))
def test_every_accepted_entry_is_forwarded_once_and_in_order(server: Any, steps: list[tuple[Any, ...]]) -> None:
    with server.client() as client:
        run_history(client, steps)


@pytest.mark.long
@settings(max_examples=3_000, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(STEP, max_size=80))
def test_thousands_of_histories(server: Any, steps: list[tuple[Any, ...]]) -> None:
    with server.client() as client:
        run_history(client, steps)
