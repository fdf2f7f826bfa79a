"""Checks at start-up that every private name we lean on is there, so drift is an error and never a wrong answer."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True, slots=True)
class PrivateMethod:
    """A method we override or call: `path` is `module:Class.method`, `parameters` those we pass or receive by name
    or position, in order, without self."""

    path: str
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PrivateAttribute:
    """An attribute set in `module:Class`'s `__init__`, found in its source."""

    path: str


class IncompatibleVLLM(RuntimeError):
    """The installed vLLM is not one this plug-in was checked with."""


def missing(names: tuple[PrivateMethod | PrivateAttribute, ...]) -> list[str]:
    """One line for each name that is absent or has another signature."""
    problems = []
    for name in names:
        module_name, _, dotted = name.path.partition(":")
        class_name, _, member = dotted.partition(".")
        try:
            owner = getattr(import_module(module_name), class_name)
        except (ImportError, AttributeError):
            problems.append(f"{name.path}: {class_name} does not exist")
            continue
        if isinstance(name, PrivateAttribute):
            if f"self.{member}" not in inspect.getsource(owner.__init__):
                problems.append(f"{name.path}: not set by {class_name}.__init__")
            continue
        method = getattr(owner, member, None)
        if method is None:
            problems.append(f"{name.path}: does not exist")
            continue
        found = [p for p in inspect.signature(method).parameters if p != "self"]
        if tuple(found[: len(name.parameters)]) != name.parameters:
            problems.append(
                f"{name.path}: parameters are ({', '.join(found)}), expected ({', '.join(name.parameters)})"
            )
    return problems
