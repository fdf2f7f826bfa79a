"""Simulations that benches ask for, each run once and kept in a folder, so that what is interrupted goes on."""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream2llm_bench.failing import Unavailable
from stream2llm_bench.simulating import artifact, planning
from stream2llm_bench.simulating.outcome import Outcome
from stream2llm_bench.workloads import anns
from stream2llm_bench.workloads.scenarios import REQUESTS, arriving, plain
from stream2llm_bench.workloads.streams import Stream

if TYPE_CHECKING:
    from stream2llm_bench.simulating.engine import Setting, SimulatedEngine

SOURCES = ("stream2llm_pod/scheduling", "stream2llm_pod/engine", "stream2llm_bench/simulating")
"""What decides about a run beside the streams and the policy."""
UNUSED = ("policies.py", "peers.py", "keeping.py", "planning.py", "command.py", "lower_bound.py", "artifact.py")
"""Files there that do not, or whose part in a run is looked at by itself."""


@dataclass(frozen=True, slots=True)
class Work:
    """The streams of one workload at one load, from one seed."""

    workload: str
    qps: float
    requests: int
    delay_multiplier: float
    seed: int
    assumptions: anns.Assumptions | None = None
    """Of a search, where not those that are set by default."""

    def draw(self) -> list[Stream]:
        if self.assumptions is not None:
            drawn = anns.generate(self.requests, self.seed, self.assumptions)
            return arriving([stream.slowed(self.delay_multiplier) for stream in drawn], self.qps, self.seed)
        return plain(self.workload, self.qps, self.requests, self.delay_multiplier).draw(self.seed)

    def __str__(self) -> str:
        stretched = f" x{self.delay_multiplier:g}" if self.delay_multiplier != 1 else ""
        return f"{self.workload} {self.qps:g}/s{stretched}, {self.requests} requests, seed {self.seed}"


def at_most(workload: str, requests: int | None) -> int:
    """As many as are asked for, and no more than the published runs have."""
    return REQUESTS[workload] if requests is None else min(requests, REQUESTS[workload])


class KeptRuns:
    """Runs simulations: by `planning` where memory suffices, in the engine otherwise.

    All are kept if there is a folder, and one that lies there already is read: same streams, same setting,
    same code of the policy. Code of the scheduler around it may have changed: `outdated` counts those, and benches say
    so.
    """

    def __init__(self, folder: Path | None, progress: Callable[[str], None], *, engine_only: bool = False) -> None:
        """folder: None keeps nothing; engine_only: never take the short way of `planning`, which is as exact.

        Raises Unavailable if the folder cannot be made.
        """
        self._folder, self._progress, self._engine_only = folder, progress, engine_only
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise Unavailable(f"--runs {folder}: {error.strerror or error}") from None
        self._engine: SimulatedEngine | None = None
        self._drawn: tuple[Work, list[Stream]] | None = None
        self.outdated = 0

    def streams(self, work: Work) -> list[Stream]:
        if self._drawn is None or self._drawn[0] != work:
            self._drawn = (work, work.draw())
        return self._drawn[1]

    def run(self, work: Work, setting: Setting) -> Outcome:
        """Raises what `SimulatedEngine.run` raises."""
        streams = self.streams(work)
        path = None if self._folder is None else self._folder / f"{_name(work, setting, streams)}.json"
        if path is not None and path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            self.outdated += kept["code"] != _code()
            return Outcome(**kept["outcome"])
        if setting.policy in artifact.ARTIFACT:
            self._progress(f"{work}: {setting.policy}{'' if setting.streaming else ', waiting'}, {setting.preemption}")
        outcome = _without_engine(streams, setting, everything=not self._engine_only)
        if outcome is None:
            way = setting.policy if setting.streaming else f"{setting.policy}, waiting"
            self._progress(f"{work}: {way}, {setting.preemption}")
            outcome = self._run_engine(streams, setting)
        if path is not None:
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps({"code": _code(), "outcome": asdict(outcome)}), encoding="utf-8")
            partial.replace(path)
        return outcome

    def _run_engine(self, streams: Sequence[Stream], setting: Setting) -> Outcome:
        if self._engine is None:
            from stream2llm_bench.simulating.engine import SimulatedEngine

            self._engine = SimulatedEngine()
        return self._engine.run(streams, setting)

    def notes(self) -> list[str]:
        """What a report must say about the runs."""
        if not self.outdated:
            return []
        return [f"{self.outdated} runs were kept from before the scheduler's code was changed."]


def _without_engine(streams: Sequence[Stream], setting: Setting, *, everything: bool) -> Outcome | None:
    """None if the engine has to run; everything: also what the engine could run."""
    if setting.policy in artifact.ARTIFACT:
        return artifact.run(streams, setting)
    return planning.run(streams, setting) if everything else None


def _name(work: Work, setting: Setting, streams: Sequence[Stream]) -> str:
    """Readable at its beginning, and different whenever anything of the streams or the setting is."""
    mode = setting.policy if setting.streaming else f"{setting.policy}-waiting"
    readable = (
        f"{work.workload}-{work.qps:g}-x{work.delay_multiplier:g}-n{work.requests}-s{work.seed}-{setting.hardware.name}-"
        f"{mode}-{setting.preemption}"
    )
    asked: dict[str, Any] = {"setting": asdict(setting), "policy": _policy_source(setting), "streams": repr(streams)}
    return f"{readable}-{_digest(json.dumps(asked, sort_keys=True).encode())[:12]}"


def _policy_source(setting: Setting) -> str:
    from stream2llm_bench.simulating.engine import STOCK
    from stream2llm_pod.scheduling.policies import make_policy

    if setting.policy == STOCK:
        return STOCK
    if setting.policy in artifact.ARTIFACT:
        return inspect.getsource(artifact)
    policy = make_policy(setting.policy)
    return inspect.getsource(type(policy)) + repr(sorted(vars(policy).items()))


@cache
def _code() -> str:
    """Digest of the sources of the scheduler and the simulator, without those of the policies."""
    import stream2llm_bench
    import stream2llm_pod

    roots = [Path(str(package.__file__)).parent.parent for package in (stream2llm_pod, stream2llm_bench)]
    digest = hashlib.sha256()
    for root, source in ((root, source) for source in SOURCES for root in roots):
        for path in sorted((root / source).rglob("*.py")):
            if path.name not in UNUSED:
                digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of every bench that simulates much."""
    parser.add_argument(
        "--runs", type=Path, metavar="DIR", help="keep each run here, and take those that are here already"
    )
    parser.add_argument("--engine", action="store_true", help="the engine also where memory suffices (hours)")


def kept_runs(args: argparse.Namespace, progress: Callable[[str], None]) -> KeptRuns:
    """As those options say."""
    return KeptRuns(args.runs, progress, engine_only=args.engine)
