"""What a chaos run sends and what goes wrong in it, all from one seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from stream2llm.entries import Append, ContextItem, Entry, Finish, Open, Update

WORDS = [
    "one",
    "tree",
    "river",
    "stone",
    "cloud",
    "amber",
    "field",
    "lantern",
    "harbour",
    "winter",
    "copper",
    "valley",
    "ash",
    "meadow",
]
SEPARATOR = "\n\n"
TENANTS = ("default", "acme", "zenith")


@dataclass(frozen=True)
class PlannedStream:
    """One stream: when each of its entries is sent (seconds from the start), and its whole prompt."""

    tenant: str
    stream: str
    prompt: str
    max_tokens: int
    entries: list[tuple[float, Entry]] = field(default_factory=list)


@dataclass(frozen=True)
class Fault:
    """At `at_s`: `kill`, `stop` (for `seconds`) or `drain` of a `pod` or a `router`, or the `restart` of `redis`."""

    at_s: float
    what: str
    whom: str
    which: int
    seconds: float = 0.0


def plan_streams(seed: int, count: int, duration_s: float) -> list[PlannedStream]:
    """`count` streams that begin within `duration_s`; half of them append, half replace their context."""
    chance = random.Random(f"streams {seed}")
    return [_plan_stream(chance, i, chance.uniform(0, duration_s)) for i in range(count)]


def _text(chance: random.Random) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(chance.randint(3, 40)))


def _plan_stream(chance: random.Random, number: int, begin_s: float) -> PlannedStream:
    stream = f"s{number}"
    max_tokens = chance.randint(4, 60)
    params = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    template = f"Context {number}:\n{{context}}\nQuestion: what about {chance.choice(WORDS)}?"
    entries: list[tuple[float, Entry]] = [(begin_s, Open(stream, prompt=template, params=params))]
    at_s = begin_s
    context: list[str] = []
    if number % 2:
        for i in range(chance.randint(1, 6)):
            at_s += chance.uniform(0, 1.0)
            context.append(_text(chance))
            append = Append(stream, text=context[-1], chunk=f"c{i}")
            # A producer that is not sure sends again.
            entries += [(at_s, append)] * chance.choice((1, 1, 1, 2))
    else:
        items = [ContextItem(f"d{i}", _text(chance)) for i in range(6)]
        for version in range(chance.randint(1, 5)):
            at_s += chance.uniform(0, 1.0)
            chosen = chance.sample(items, chance.randint(1, len(items)))
            entries.append((at_s, Update(stream, tuple(chosen), version)))
            context = [item.text or "" for item in chosen]
    at_s += chance.uniform(0, 1.0)
    entries.append((at_s, Finish(stream)))
    prompt = template.replace("{context}", SEPARATOR.join(context))
    return PlannedStream(TENANTS[number % len(TENANTS)], stream, prompt, max_tokens, entries)


FAULTS = ("kill", "stop", "drain")


def plan_faults(
    seed: int, count: int, duration_s: float, pods: int, routers: int, kinds: Sequence[str] = FAULTS
) -> list[Fault]:
    """`count` faults of pods and routers, evenly spread with some play, and one restart of Redis among them.

    Without routers only pods are struck.
    """
    chance = random.Random(f"faults {seed}")
    faults = []
    step_s = duration_s / (count + 1)
    for i in range(count):
        at_s = step_s * (i + 1 + chance.uniform(-0.3, 0.3))
        whom = chance.choice(("pod", "pod", "router")) if routers else "pod"
        what = chance.choice(kinds)
        # Shorter and longer than what a heartbeat or a lease lives.
        seconds = chance.choice((2.0, 13.0)) if what == "stop" else 0.0
        which = chance.randrange(pods if whom == "pod" else routers)
        faults.append(Fault(at_s, what, whom, which, seconds))
    faults.append(Fault(duration_s * chance.uniform(0.3, 0.7), "restart", "redis", 0))
    return sorted(faults, key=lambda fault: fault.at_s)
