"""Simulated hardware: how long a step takes and how much KV memory there is.

A step takes a fixed time, a time for each token in it, and for each token a time for each token before it (attention).
The figures are set so that the paper's non-streaming and default-streaming rows come out (docs/decisions/0017); those
of copies are the estimates of `costprofiles/` for our CUDA backend, or the artifact's way of copying.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stream2llm.costprofile import CostProfile, Curve, ProfileKey

if TYPE_CHECKING:
    from stream2llm_pod.scheduling.costs import CostModel

KV_BYTES_PER_TOKEN = 131_072
"""Of Llama-3.1-8B in 16 bits, over both ranks."""
RANKS = 2
POINTS = 40
ANNS_PRESSURE_KV_TOKENS = 350_000
"""KV memory for the paper's pressure on vector search, between what the artifact's default streaming asks for by its
preemptions (130 published; 201 with this, 115 with 420,000) and by its collapse (P95 of 27.5 s; 9.6 s with this, 18 s
with 250,000). How long those streams were open is not published; by the published gaps 1.2 million would suffice."""
BUDGETS: Mapping[str, int] = {"crawler": 2048, "anns": 8192}
"""Tokens a step in the paper's runs, by workload."""
DEFAULT_BUDGET_TOKENS = 2048
SHORTEST_TOKENS, LONGEST_TOKENS = 32, 131_072


@dataclass(frozen=True, slots=True)
class Hardware:
    """One engine. Llama-3.1-8B on two GPUs, unless the name says otherwise."""

    name: str
    step_ms: float
    token_us: float
    pair_ns: float
    """For each token of the prompt squared: the last of n tokens attends to n before it, at twice this each."""
    kv_tokens: int
    copy_ms: float
    copied_token_us: float
    """A copy between GPU and host, each way: to start it, and for each token."""
    host_tokens: int

    def prefill_ms(self, tokens: float) -> float:
        """One step that computes the first `tokens` of a prompt."""
        return self.step_ms + self.token_us * tokens / 1e3 + self.pair_ns * tokens * tokens / 1e6

    def span_ms(self, start: int, end: int) -> float:
        """What the tokens from `start` up to `end` of one prompt add to a step."""
        return self.prefill_ms(end) - self.prefill_ms(start)

    def profile(self, key: ProfileKey, vllm_version: str) -> CostProfile:
        """A cost profile of this hardware for the engine with `key`: the steps that are simulated, and what the
        scheduler predicts by."""
        copies = self._copies()
        return CostProfile.of_engine(
            key,
            kv_bytes_per_token=KV_BYTES_PER_TOKEN,
            vllm_version=vllm_version,
            source="estimated",
            measured_at="",
            prefill=self._prefills(),
            swap_out=copies,
            swap_in=copies,
            method=f"simulated {self.name}",
        )

    def costs(self) -> CostModel:
        """The same curves, as steps are timed by."""
        from stream2llm_pod.scheduling.costs import CostCurve, CostModel

        copies = self._copies()
        return CostModel(*(CostCurve(curve.points) for curve in (self._prefills(), copies, copies)))

    def _prefills(self) -> Curve:
        lengths = _lengths()
        return Curve(lengths, tuple(round(self.prefill_ms(n), 6) for n in lengths))

    def _copies(self) -> Curve:
        lengths = _lengths()
        return Curve(lengths, tuple(round(self.copy_ms + self.copied_token_us * n / 1e3, 6) for n in lengths))


def _lengths() -> tuple[int, ...]:
    ratio = (LONGEST_TOKENS / SHORTEST_TOKENS) ** (1 / (POINTS - 1))
    return tuple(sorted({round(SHORTEST_TOKENS * ratio**i) for i in range(POINTS)}))


HARDWARE: Mapping[str, Hardware] = {
    hardware.name: hardware
    for hardware in (
        Hardware("h200-tp2", 8.0, 12.5, 0.23, 1_200_000, 0.5, 1.28, 2_400_000),
        Hardware("h100-tp2", 8.0, 13.2, 0.24, 640_000, 0.5, 1.28, 1_280_000),
        # Copies block by block and layer by layer, as the paper's artifact does: about as many of its preemptions by
        # cost are swaps as are published (15 to 25 % on the crawler, 17 to 21; 2 % on vector search, 0 to 2).
        Hardware("h200-tp2-artifact", 8.0, 12.5, 0.23, 1_240_000, 0.5, 11.0, 2_480_000),
    )
}


def find_hardware(name: str) -> Hardware:
    """The hardware called `name`; ValueError lists the known names otherwise."""
    try:
        return HARDWARE[name]
    except KeyError:
        raise ValueError(f"hardware {name!r} is not known; choose one of {', '.join(HARDWARE)}") from None
