"""The published times to first token. Figures are in `published.tsv`, beside what they mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).parent / "published.tsv"
PREEMPTIONS_FILE = Path(__file__).parent / "preemptions.tsv"
PERCENTILES: Mapping[str, float] = {"p50": 50, "p95": 95, "p99": 99}
"""Those compared. The file has p999 too, which is less than one of 500 requests, and at most five of 4,309."""
STREAMING, NON_STREAMING = BASELINES = ("default streaming", "non-streaming")


class Condition(NamedTuple):
    """One experiment; all policies meet the same requests."""

    hardware: str
    workload: str
    qps: float
    delay_multiplier: float
    preemption: str

    @property
    def pressure(self) -> bool:
        """Whether delays are stretched until memory is short."""
        return self.delay_multiplier > 1


@dataclass(slots=True)
class Row:
    """What one experiment gave."""

    baselines_s: dict[str, dict[str, float]] = field(default_factory=dict)
    """Baseline → percentile → seconds."""
    ratios: dict[tuple[str, str, str], float] = field(default_factory=dict)
    """(policy, baseline, percentile) → time of the baseline ÷ time of the policy: above 1 the policy is faster."""


def load_preemptions() -> dict[tuple[str, str], dict[str, int]]:
    """(workload, kind of preemption) → baseline or policy → preemptions, where delays are stretched."""
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for line in PREEMPTIONS_FILE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            workload, kind, *values = line.split("\t")
            names = (STREAMING, "fcfs", "lcas", "mcps")
            counts[workload, kind] = dict(zip(names, map(int, values), strict=True))
    return counts


def load_published() -> dict[Condition, Row]:
    """All published experiments, in the order of the file."""
    rows: dict[Condition, Row] = {}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        hardware, workload, qps, delay, preemption, policy, against_streaming, against_waiting = line.split("\t")
        row = rows.setdefault(Condition(hardware, workload, float(qps), float(delay), preemption), Row())
        for baseline, figures in zip(BASELINES, (against_streaming, against_waiting), strict=True):
            for percentile, value in _figures(figures):
                if policy == "baselines":
                    row.baselines_s.setdefault(baseline, {})[percentile] = value
                else:
                    row.ratios[policy, baseline, percentile] = value
    return rows


def _figures(text: str) -> Iterator[tuple[str, float]]:
    return zip(PERCENTILES, (float(value) for value in text.split("/")), strict=False)
