"""Scenarios: small YAML files that say which retrievals arrive, how often, and from whom."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from stream2llm_bench.workloads import anns, crawler
from stream2llm_bench.workloads.arrivals import Bursts, poisson
from stream2llm_bench.workloads.published import ANNS, CRAWLER
from stream2llm_bench.workloads.streams import Stream

FOLDER = Path(__file__).parent.parent / "scenarios"
GENERATORS: Mapping[str, Callable[[int, int], list[Stream]]] = {
    crawler.NAME: lambda count, seed: crawler.generate(count, seed),
    anns.NAME: lambda count, seed: anns.generate(count, seed),
}
REQUESTS = {crawler.NAME: CRAWLER.requests, anns.NAME: ANNS.requests}
"""How many the published runs have."""
MAX_REQUESTS = 1_000_000
MAX_PARTS = 256


class InvalidScenario(ValueError):
    """What a scenario file says cannot be used; the message names the field, its value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Part:
    """A share of the streams: of which workload, whose, and how much slower than published."""

    workload: str
    share: float = 1.0
    tenant: str = "default"
    delay_multiplier: float = 1.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """Streams of several parts, in random order, that begin as a Poisson process."""

    name: str
    qps: float
    requests: int
    parts: tuple[Part, ...]
    bursts: Bursts | None = None
    description: str = ""

    def draw(self, seed: int) -> list[Stream]:
        """The streams of one run in the order of their arrival. The same seed gives the same streams for ever."""
        counts = _counts(self.requests, [part.share for part in self.parts])
        drawn: list[Stream] = []
        for number, (part, count) in enumerate(zip(self.parts, counts, strict=True)):
            if count:
                for stream in GENERATORS[part.workload](count, seed + 1_000_003 * number & 0xFFFF_FFFF):
                    named = replace(stream, name=f"{number}-{stream.name}", tenant=part.tenant)
                    drawn.append(named.slowed(part.delay_multiplier))
        order = np.random.RandomState([seed, len(drawn)]).permutation(len(drawn))
        return arriving([drawn[i] for i in order], self.qps, seed, self.bursts)


def arriving(streams: Sequence[Stream], qps: float, seed: int, bursts: Bursts | None = None) -> list[Stream]:
    """The streams with the times at which their retrievals begin."""
    times_s = poisson(len(streams), qps, seed, bursts)
    return [replace(stream, starts_s=float(when_s)) for stream, when_s in zip(streams, times_s, strict=True)]


def plain(workload: str, qps: float, requests: int | None = None, delay_multiplier: float = 1.0) -> Scenario:
    """One workload alone. Raises InvalidScenario."""
    document = {
        "name": workload,
        "qps": qps,
        "requests": REQUESTS.get(workload, 1) if requests is None else requests,
        "parts": [{"workload": workload, "delay_multiplier": delay_multiplier}],
    }
    return parse_scenario(document)


def names() -> list[str]:
    """The scenarios that come with the bench."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_scenario(name_or_path: str) -> Scenario:
    """A scenario of ours by name, or any file by path. Raises InvalidScenario."""
    ours = FOLDER / f"{name_or_path}.yaml"
    path = ours if name_or_path in names() else Path(name_or_path)
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidScenario(
            f"scenario {name_or_path!r} is none of {', '.join(names())}, and no file that can be read ({error})"
        ) from None
    except yaml.YAMLError as error:
        raise InvalidScenario(f"scenario {path}: not YAML: {error}") from None
    return parse_scenario(document)


def parse_scenario(document: Any) -> Scenario:
    """Raises InvalidScenario for anything but a document of the fields of `Scenario`."""
    fields = _mapping("scenario", document, {"name", "description", "qps", "requests", "parts", "bursts"})
    for required in ("name", "qps", "requests", "parts"):
        if required not in fields:
            raise InvalidScenario(f"{required} is missing")
    parts = fields["parts"]
    if not isinstance(parts, list) or not 1 <= len(parts) <= MAX_PARTS:
        raise InvalidScenario(f"parts must be a list of 1 to {MAX_PARTS} items")
    requests = fields["requests"]
    if not isinstance(requests, int) or isinstance(requests, bool) or not 1 <= requests <= MAX_REQUESTS:
        raise InvalidScenario(f"requests must be a whole number from 1 to {MAX_REQUESTS}, not {requests!r}")
    return Scenario(
        name=str(fields["name"]),
        qps=_above_zero("qps", fields["qps"]),
        requests=requests,
        parts=tuple(_part(f"parts[{i}]", part) for i, part in enumerate(parts)),
        bursts=_bursts(fields["bursts"]) if fields.get("bursts") is not None else None,
        description=str(fields.get("description", "")),
    )


def _part(where: str, document: Any) -> Part:
    fields = _mapping(where, document, {"workload", "share", "tenant", "delay_multiplier"})
    workload = fields.get("workload")
    if workload not in GENERATORS:
        raise InvalidScenario(f"{where}.workload must be one of {', '.join(GENERATORS)}, not {workload!r}")
    return Part(
        str(workload),
        _above_zero(f"{where}.share", fields.get("share", 1.0)),
        str(fields.get("tenant", "default")),
        _above_zero(f"{where}.delay_multiplier", fields.get("delay_multiplier", 1.0)),
    )


def _bursts(document: Any) -> Bursts:
    wanted = ("every_s", "length_s", "factor")
    fields = _mapping("bursts", document, set(wanted))
    try:
        return Bursts(*(_above_zero(f"bursts.{name}", fields.get(name)) for name in wanted))
    except ValueError as error:
        raise InvalidScenario(str(error)) from None


def _mapping(where: str, document: Any, known: set[str]) -> Mapping[str, Any]:
    if not isinstance(document, Mapping):
        raise InvalidScenario(f"{where} must be a mapping, not {type(document).__name__}")
    unknown = sorted(str(name) for name in document if name not in known)
    if unknown:
        raise InvalidScenario(f"{where}: {', '.join(unknown)} not known; there are {', '.join(sorted(known))}")
    return document


def _above_zero(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value > 0 and math.isfinite(value)):
        raise InvalidScenario(f"{where} must be a number above 0, not {value!r}")
    return float(value)


def _counts(total: int, shares: Sequence[float]) -> list[int]:
    """`total` divided by shares: whole numbers with that sum, by largest remainders."""
    exact = [total * share / sum(shares) for share in shares]
    counts = [int(part) for part in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts
