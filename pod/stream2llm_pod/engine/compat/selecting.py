"""Picks the compatibility module of the installed vLLM, or refuses it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from stream2llm_pod.engine.compat.private_names import IncompatibleVLLM, missing

SUPPORTED_MINORS = ("0.32", "0.33")


def module_for(version: str) -> ModuleType:
    """The compatibility module for a vLLM `version`; IncompatibleVLLM outside the supported minors."""
    minor = ".".join(version.split(".")[:2])
    if minor not in SUPPORTED_MINORS:
        raise IncompatibleVLLM(
            f"stream2llm supports vLLM {SUPPORTED_MINORS[0]} to {SUPPORTED_MINORS[-1]}, found {version}; "
            "install a supported version or a newer stream2llm"
        )
    return import_module(f"stream2llm_pod.engine.compat.v{minor.replace('.', '_')}")


def checked_module(version: str, *, front_end: bool = False) -> ModuleType:
    """As `module_for`, after checking each private name of one side against what is installed."""
    module = module_for(version)
    problems = missing(module.FRONT_END_NAMES if front_end else module.NAMES)
    if problems:
        raise IncompatibleVLLM(
            f"vLLM {version} is not what stream2llm was checked with; refusing to start:\n  " + "\n  ".join(problems)
        )
    return module
