"""Cost profiles: what prefill and swap cost on one kind of GPU, for one model and one engine configuration.

Pure Python without dependencies: the profiler writes profiles, the engine and the operator read them.
"""

from stream2llm.costprofile.document import CostProfile, Curve, InvalidProfile, parse_profile
from stream2llm.costprofile.key import ProfileKey

__all__ = ["CostProfile", "Curve", "InvalidProfile", "ProfileKey", "parse_profile"]
