"""One chaos run: sends a workload, breaks things meanwhile, reads all replies, and says what is wrong with them."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import redis
from pool import Pool, Process
from workload import TENANTS, Fault, PlannedStream

from stream2llm.entries import Entry, encode
from stream2llm.events import Done, ErrorEvent, Event, Token, is_terminal, parse_event
from stream2llm.keys import PoolKeys

KEYS = PoolKeys()
READ_STREAMS = 100
GIVE_UP_S = 600.0
"""After so long without any event, or any fault, what has not ended will not."""


@dataclass
class Reply:
    events: list[Event] = field(default_factory=list)
    after: str = "0"

    @property
    def ended(self) -> bool:
        return any(map(is_terminal, self.events))


class Run:
    """The workload and the faults go by the same clock; an outage of Redis makes producers wait and try again."""

    def __init__(self, pool: Pool, streams: list[PlannedStream], faults: list[Fault]) -> None:
        self._pool, self._streams, self._faults = pool, streams, faults
        self.replies = {(planned.tenant, planned.stream): Reply() for planned in streams}
        self.failures: list[BaseException] = []
        self._heard_s = time.monotonic()

    def run(self) -> None:
        with self._pool.redis.client() as client:
            client.sadd(KEYS.tenants, *TENANTS)
        self._start_s = time.monotonic()
        threads = [
            threading.Thread(target=self._guarded, args=(work,)) for work in (self._produce, self._break, self._read)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failures:
            raise self.failures[0]

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:
            self.failures.append(error)

    def _sleep_until(self, at_s: float) -> None:
        time.sleep(max(self._start_s + at_s - time.monotonic(), 0))

    def _produce(self) -> None:
        planned = [(at_s, stream.tenant, entry) for stream in self._streams for at_s, entry in stream.entries]
        client = self._pool.redis.client()
        # Sorting keeps the order of what is sent at the same moment.
        for at_s, tenant, entry in sorted(planned, key=lambda item: item[0]):
            self._sleep_until(at_s)
            self._send(client, tenant, entry)

    def _send(self, client: redis.Redis, tenant: str, entry: Entry) -> None:
        while True:
            try:
                client.xadd(KEYS.ingress(tenant), encode(entry))
                return
            except redis.RedisError:
                time.sleep(0.1)

    def _break(self) -> None:
        for fault in self._faults:
            self._sleep_until(fault.at_s)
            now_s = time.monotonic() - self._start_s
            print(f"{now_s:6.1f} s  {fault.what} {fault.whom} {fault.which} {fault.seconds or ''}", flush=True)
            if fault.whom == "redis":
                self._pool.redis.restart()
                continue
            process = (self._pool.pods if fault.whom == "pod" else self._pool.routers)[fault.which]
            self._strike(process, fault)
            # At most one of them is away at a time.
            self._pool.wait_ready()
            self._heard_s = time.monotonic()

    def _strike(self, process: Process, fault: Fault) -> None:
        if fault.what == "kill":
            process.kill()
            process.start()
        elif fault.what == "drain":
            process.drain()
            process.kill()
            process.start()
        else:
            process.signal(signal.SIGSTOP)
            time.sleep(fault.seconds)
            process.signal(signal.SIGCONT)

    def _read(self) -> None:
        client = self._pool.redis.client()
        self._heard_s = time.monotonic()
        while waiting := [key for key, reply in self.replies.items() if not reply.ended]:
            if time.monotonic() > self._heard_s + GIVE_UP_S or self.failures:
                raise TimeoutError(f"{len(waiting)} streams have not ended: {waiting[:10]}")
            try:
                for i in range(0, len(waiting), READ_STREAMS):
                    self._read_some(client, waiting[i : i + READ_STREAMS])
            except redis.RedisError:
                pass
            time.sleep(0.2)

    def _read_some(self, client: redis.Redis, keys: list[tuple[str, str]]) -> None:
        by_key = {KEYS.reply(*key).encode(): key for key in keys}
        answer: Any = client.xread({name.decode(): self.replies[key].after for name, key in by_key.items()}, count=500)
        for name, entries in answer or ():
            self._heard_s = time.monotonic()
            reply = self.replies[by_key[name]]
            for entry_id, fields in entries:
                reply.after = entry_id.decode()
                event = parse_event(fields)
                if event is not None:
                    reply.events.append(event)

    # ---------------------------------------------------------------- afterwards
    def leave_out(self, stream: str) -> None:
        """`wrong` is not to look at this one."""
        self._streams = [planned for planned in self._streams if planned.stream != stream]

    def wrong(self) -> list[str]:
        """A line for each stream that is not as it must be."""
        with ThreadPoolExecutor(8) as executor:
            expected = list(
                executor.map(
                    lambda planned: self._pool.pods[0].complete(planned.prompt, planned.max_tokens), self._streams
                )
            )
        found = []
        for planned, text in zip(self._streams, expected, strict=True):
            events = self.replies[planned.tenant, planned.stream].events
            problems = list(_problems(planned, events, text))
            found += [f"{planned.tenant}/{planned.stream}: {problem}" for problem in problems]
        return found

    def left_behind(self) -> list[str]:
        """Keys of streams, and what else may not be there once all replies have expired."""
        give_up_s = time.monotonic() + 60
        while True:
            with self._pool.redis.client() as client:
                left = sorted(key.decode() for key in client.keys(f"{KEYS.prefix}:*") if _must_go(client, key))
            if not left or time.monotonic() > give_up_s:
                return left
            time.sleep(1)


def _problems(planned: PlannedStream, events: list[Event], text: str) -> list[str]:
    terminal = [event for event in events if is_terminal(event)]
    errors = [f"{event.code}: {event.message}" for event in events if isinstance(event, ErrorEvent)]
    if len(terminal) != 1 or not isinstance(terminal[0], Done) or errors:
        return [f"terminal {terminal}, errors {errors}"]
    problems = []
    done = terminal[0]
    tokens = [event for event in events if isinstance(event, Token)]
    index = 0
    for token in tokens:
        if token.index != index:
            problems.append(f"index {token.index} where {index} was to come")
            break
        index += len(token.token_ids)
    if index != planned.max_tokens or done.usage["completion_tokens"] != planned.max_tokens:
        problems.append(f"{index} tokens came, {done.usage} are told, {planned.max_tokens} were asked for")
    if (answer := "".join(token.text for token in tokens)) != text:
        problems.append(f"answer {answer!r} is not {text!r}")
    return problems


def _must_go(client: redis.Redis, key: bytes) -> bool:
    kind = key.decode().removeprefix(KEYS.prefix + ":").split(":")[0]
    if kind in ("entries", "reply", "route", "assigned", "held", "gone", "rejected"):
        return True
    return kind in ("ingress", "log") and bool(client.xlen(key))
