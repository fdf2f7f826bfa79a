"""vLLM 0.33: the same names with the same meaning as in 0.32, checked against its sources."""

from __future__ import annotations

from stream2llm_pod.engine.compat.v0_32 import FRONT_END_NAMES, NAMES, FrontEnd, Upstream

__all__ = ["FRONT_END_NAMES", "NAMES", "FrontEnd", "Upstream"]
