"""Draws the two costs over the length of the prompt, and where they cross."""

from __future__ import annotations

from pathlib import Path

from stream2llm.costprofile import CostProfile
from stream2llm_pod.profiling.crossing import cost_model, crossings


def draw(profile: CostProfile, path: Path) -> None:
    """Write a PNG. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    costs = cost_model(profile)
    figure, axes = pyplot.subplots(figsize=(6.4, 4))
    lengths = profile.prefill.tokens
    axes.plot(lengths, [costs.recompute_ms(tokens) for tokens in lengths], label="recompute")
    axes.plot(lengths, [costs.swap_ms(tokens) for tokens in lengths], label="swap (out and in)")
    deviations = profile.prefill.mad_ms or (0.0,) * len(lengths)
    axes.errorbar(lengths, profile.prefill.ms, yerr=deviations, fmt=".", color="C0", capsize=2)
    for tokens, way in crossings(profile)[1:]:
        axes.axvline(tokens, color="grey", linewidth=0.8, linestyle="--")
        axes.annotate(f"{way} from {tokens}", (tokens, axes.get_ylim()[0]), fontsize=8, rotation=90, va="bottom")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("tokens")
    axes.set_ylabel("ms")
    axes.set_title(
        f"{profile.model} on {profile.gpu}, TP {profile.tensor_parallel_size} ({profile.source})", fontsize=9
    )
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
