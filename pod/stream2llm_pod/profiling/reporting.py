"""What the profiler prints: the profile for programs, a table for people, a message for Kubernetes."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stream2llm.costprofile import CostProfile
from stream2llm_pod.profiling.crossing import cost_model, crossings
from stream2llm_pod.profiling.measuring import Measurements

_COLUMNS = ("tokens", "prefill", "± (MAD)", "out", "in", "cheaper")


def to_table(profile: CostProfile) -> str:
    """Medians in milliseconds, and which way is cheaper for a prompt of that length."""
    ways = crossings(profile)
    rows: list[Sequence[str]] = [_COLUMNS]
    columns = zip(profile.prefill.tokens, profile.prefill.mad_ms, strict=True)
    costs = cost_model(profile)
    for (tokens, mad_ms), prefill_ms in zip(columns, profile.prefill.ms, strict=True):
        way = [way for start, way in ways if start <= tokens][-1]
        rows.append(
            (
                str(tokens),
                f"{prefill_ms:.1f}",
                f"{mad_ms:.1f}",
                f"{costs.swap_out_ms(tokens):.2f}",
                f"{costs.swap_in_ms(tokens):.2f}",
                str(way),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def to_crossings_text(profile: CostProfile) -> str:
    """One sentence on where the two costs cross."""
    first, *later = crossings(profile)
    if not later:
        return f"{first[1]} is cheaper at every measured length"
    return f"{first[1]} is cheaper for short prompts, " + ", ".join(f"{way} from {at} tokens on" for at, way in later)


def to_figures(profile: CostProfile, found: Measurements) -> dict[str, Any]:
    """The profile, and what a profile has no place for: crossings, numbers of samples, and what was skipped and why."""
    figures: dict[str, Any] = json.loads(profile.to_json())
    figures["crossings"] = [{"tokens": tokens, "cheaper": str(way)} for tokens, way in crossings(profile)]
    figures["samples"] = {str(tokens): len(samples) for tokens, samples in found.prefill_ms.items()}
    figures["skipped"] = [{"tokens": skipped.tokens, "reason": skipped.reason} for skipped in found.skipped]
    return figures


def write(text: str, path: Path) -> None:
    """All of it or nothing: whoever reads the file never sees half a profile. OSError if it cannot be written."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
