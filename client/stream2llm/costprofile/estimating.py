"""A profile from published peak figures: a roofline, for hardware that nobody has measured yet.

Prefill of a prompt in steps of the token budget. A step takes the longer of its arithmetic and its memory traffic, then
the all-reduces of tensor parallelism, and a fixed overhead:

- arithmetic: 2 FLOPs for each weight and token, and 4 · heads · head size FLOPs for each layer and pair of a token with
  one it attends to (Q·K and P·V, causal), over TP · peak · efficiency;
- traffic: all weights once and the KV cache of the prompt so far, over TP · bandwidth · efficiency;
- all-reduces: two of tokens · hidden size a layer, each moving 2 · (TP - 1) / TP of its bytes over a GPU's link;
- swap: the rank's share of the KV bytes over a GPU's link to the host, and a fixed overhead.
"""

from __future__ import annotations

from dataclasses import dataclass

from stream2llm.costprofile.document import CostProfile, Curve
from stream2llm.costprofile.key import ProfileKey


@dataclass(frozen=True, slots=True)
class Device:
    """Published peak figures of one GPU, in 10^12 FLOP/s and 10^9 bytes/s, one direction where a link has two."""

    product: str
    """The node label's."""
    peak_tflops: float
    """Dense matrix products in bfloat16."""
    memory_gb_s: float
    host_gb_s: float
    """To CPU memory (PCIe)."""
    peer_gb_s: float
    """To the other GPUs (NVLink, or PCIe)."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A dense decoder with grouped-query attention and a gated MLP."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    max_tokens: int
    bytes_per_value: int = 2

    @property
    def layer_weights(self) -> int:
        """Weights that every token meets; the embedding is looked up, the last projection meets one token a prompt."""
        attention = self.hidden * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_size * self.bytes_per_value


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """Which share of its peak each part reaches, and the fixed costs. Assumptions, not measurements."""

    arithmetic: float = 0.5
    memory: float = 0.8
    link: float = 0.8
    step_ms: float = 4.0
    """Scheduling, launching kernels, sampling."""
    copy_ms: float = 0.5
    """Starting a copy and waiting for it."""


def estimate(
    device: Device,
    model: ModelShape,
    engine: ProfileKey,
    *,
    vllm_version: str,
    efficiencies: Efficiencies | None = None,
) -> CostProfile:
    """The estimated profile of `model` on `device` in an engine with this key, at powers of two up to its length.

    Points lie one step of the block size and more apart, so there are at most 25.
    """
    assumed = Efficiencies() if efficiencies is None else efficiencies
    lengths = powers_of_two(engine.block_size, model.max_tokens)
    ranks, budget = engine.tensor_parallel_size, engine.max_num_batched_tokens
    prefill = tuple(round(prefill_ms(device, model, tokens, ranks, budget, assumed), 3) for tokens in lengths)
    copy = tuple(
        round(assumed.copy_ms + tokens * model.kv_bytes_per_token / ranks / (device.host_gb_s * assumed.link) / 1e6, 3)
        for tokens in lengths
    )
    return CostProfile.of_engine(
        engine,
        kv_bytes_per_token=model.kv_bytes_per_token,
        vllm_version=vllm_version,
        source="estimated",
        measured_at="",
        prefill=Curve(lengths, prefill),
        swap_out=Curve(lengths, copy),
        swap_in=Curve(lengths, copy),
        method="roofline from published peak figures (costprofiles/README.md)",
    )


def prefill_ms(
    device: Device, model: ModelShape, tokens: int, ranks: int, budget_tokens: int, assumed: Efficiencies
) -> float:
    """Prefill of `tokens` in steps of at most `budget_tokens` on `ranks` GPUs."""
    total_ms, start = 0.0, 0
    while start < tokens:
        end = min(start + budget_tokens, tokens)
        total_ms += _step_ms(device, model, start, end, ranks, assumed)
        start = end
    return total_ms


def _step_ms(device: Device, model: ModelShape, start: int, end: int, ranks: int, assumed: Efficiencies) -> float:
    tokens = end - start
    output_weights = model.hidden * model.vocabulary
    pairs = tokens * start + tokens * (tokens + 1) / 2
    flops = 2.0 * (model.layer_weights * tokens + output_weights)
    flops += 4 * model.layers * model.heads * model.head_size * pairs
    arithmetic_ms = flops / (ranks * device.peak_tflops * assumed.arithmetic) / 1e9
    read_bytes = (model.layer_weights + output_weights) * model.bytes_per_value + end * model.kv_bytes_per_token
    memory_ms = read_bytes / (ranks * device.memory_gb_s * assumed.memory) / 1e6
    reduced_bytes = 2 * model.layers * tokens * model.hidden * model.bytes_per_value * 2 * (ranks - 1) / ranks
    reduce_ms = reduced_bytes / (device.peer_gb_s * assumed.link) / 1e6
    return max(arithmetic_ms, memory_ms) + reduce_ms + assumed.step_ms


def powers_of_two(shortest: int, longest: int) -> tuple[int, ...]:
    """`shortest`, then doubled as long as it is below `longest`, then `longest`."""
    lengths = []
    tokens = shortest
    while tokens < longest:
        lengths.append(tokens)
        tokens *= 2
    return (*lengths, longest)
