"""The processes of `bench route`, `python -m stream2llm_bench.route.roles ROLE …`; each ends with one line of JSON.

Latencies are taken with CLOCK_MONOTONIC, which all processes of one machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

from stream2llm.connecting import connect, connect_async
from stream2llm.ending import end_tasks
from stream2llm.entries import Append, Entry, Open
from stream2llm.entries import encode as encode_entry
from stream2llm.errors import ErrorCode
from stream2llm.keys import DEFAULT_TENANT, PoolKeys
from stream2llm_pod.serving.clocks import RedisClock
from stream2llm_pod.serving.heartbeats import Capacity, Figures, Heartbeats, Identity, Load
from stream2llm_pod.serving.intake import Adoption, Intake

BARE_KEY = "bench:bare"
STREAMS = 16
ENTRY_BYTES = 1_024
CAPACITY = 1_000_000
POD = "bench"


def stream_names(run: int) -> list[str]:
    return [f"run{run}-{i}" for i in range(STREAMS)]


def open_fields(stream: str) -> dict[str, str]:
    return encode_entry(Open(stream, prompt="{context}"))


def stamped_fields(stream: str, size_bytes: int = ENTRY_BYTES) -> dict[str, str]:
    """An append whose text begins with the moment."""
    return encode_entry(Append(stream, text=str(time.monotonic_ns()).ljust(size_bytes, ".")))


def age_us(text: str) -> float:
    return (time.monotonic_ns() - int(text.split(".", 1)[0])) / 1e3


def produce(url: str, keys: PoolKeys, key: str, run: int, rate: float, count: int) -> None:
    """XADD `count` entries at `rate` a second; late ones follow at once."""
    client = connect(url)
    streams = stream_names(run)
    start_s = time.monotonic()
    for i in range(count):
        time.sleep(max(start_s + i / rate - time.monotonic(), 0))
        client.xadd(key, stamped_fields(streams[i % len(streams)]))  # type: ignore[arg-type]
    print(json.dumps({"seconds": time.monotonic() - start_s}))


async def consume_bare(url: str, count: int) -> None:
    """The plain hop: blocking reads with the same client as a pod's intake."""
    client = connect_async(url)
    ages_us: list[float] = []
    after = "0"
    while len(ages_us) < count:
        answer: Any = await client.xread({BARE_KEY: after}, count=100, block=5_000)
        for entry_id, fields in answer[0][1] if answer else ():
            ages_us.append(age_us(fields[b"text"].decode()))
            after = entry_id.decode()
    await client.aclose()
    print(json.dumps(ages_us))


class Session:
    """Takes entries as a session does, and notes how old they are."""

    def __init__(self, adoption: Adoption, ages_us: list[float]) -> None:
        self._adoption, self._ages_us = adoption, ages_us
        self.applied_seq, self.over, self.pending_bytes = 1, False, 0

    @property
    def attempt(self) -> int:
        return self._adoption.attempt

    @property
    def open_id(self) -> str:
        return self._adoption.open_id

    def deliver(self, entry: Entry, seq: int, arrived_ms: int, ingress_id: str) -> None:
        self.applied_seq = seq
        if isinstance(entry, Append) and entry.text is not None:
            self._ages_us.append(age_us(entry.text))

    def skip(self, seq: int) -> None:
        self.applied_seq = seq

    def refuse(self, code: ErrorCode, message: str, field: str | None, ingress_id: str | None) -> None:
        return

    def drop(self) -> None:
        self.over = True

    def lose(self, message: str) -> None:
        self.over = True


async def consume_pod(url: str, keys: PoolKeys, count: int) -> None:
    """A pod's own heartbeats and intake, without an engine."""
    ages_us: list[float] = []
    incarnation = f"{time.monotonic_ns():x}"
    clock = RedisClock()
    client, log_client = connect_async(url), connect_async(url)

    def open_session(tenant: str, opening: Open, adoption: Adoption) -> Session:
        return Session(adoption, ages_us)

    identity = Identity(POD, incarnation, "bench", (), 0, Capacity(CAPACITY, 0), "")
    load = Load(0, 0, 0.0)
    beats = Heartbeats(client, keys, identity, clock, lambda: "ready", lambda: load, Figures, lambda: incarnation)
    await beats.beat()
    beating = asyncio.create_task(beats.run())
    intake = Intake(log_client, keys, POD, incarnation, clock, open_session)
    while len(ages_us) < count:
        await intake.take()
    await end_tasks([beating])
    await beats.retire()
    await client.aclose()
    await log_client.aclose()
    print(json.dumps(ages_us))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("produce", "consume-bare", "consume-pod"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--pool", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--run", type=int, default=0)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--bare", action="store_true")
    args = parser.parse_args()
    keys = PoolKeys(args.pool)
    if args.role == "produce":
        key = BARE_KEY if args.bare else keys.ingress(DEFAULT_TENANT)
        produce(args.url, keys, key, args.run, args.rate, args.count)
    elif args.role == "consume-bare":
        asyncio.run(consume_bare(args.url, args.count))
    else:
        asyncio.run(consume_pod(args.url, keys, args.count))


if __name__ == "__main__":
    main()
