"""What a cost profile is about: two engines with equal keys may share one."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

_MINOR = re.compile(r"(\d+\.\d+)(?!\d)")
_SNAPSHOT = re.compile(r"models--(?P<name>[^/]+)/snapshots/(?P<revision>[^/]+)$")


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """gpu: product name as in the node label, `cpu` on CPU; vllm_minor: the first two numbers of vLLM's version."""

    gpu: str
    model: str
    revision: str
    dtype: str
    kv_cache_dtype: str
    quantization: str | None
    tensor_parallel_size: int
    block_size: int
    max_num_batched_tokens: int
    vllm_minor: str

    def differences(self, engine: ProfileKey) -> list[str]:
        """One line for each field in which this profile's key differs from the running engine's; none if it fits."""
        lines = []
        for field in fields(self):
            ours, theirs = getattr(self, field.name), getattr(engine, field.name)
            if ours != theirs:
                lines.append(f"{field.name}: profile has {_shown(ours)}, this engine has {_shown(theirs)}")
        return lines


def _shown(value: object) -> str:
    return "none" if value is None or value == "" else str(value)


def vllm_minor(version: str) -> str:
    """`0.32` of `0.32.0+cpu`. ValueError if the version does not begin with two numbers."""
    match = _MINOR.match(version)
    if match is None:
        raise ValueError(f"vLLM version {version!r} does not begin with two numbers")
    return match[1]


def model_identity(model: str, revision: str | None) -> tuple[str, str]:
    """Model and revision as they stand in a key, however the engine was given them.

    A Hugging Face name stays as it is. A folder counts by its last part, as the same folder lies elsewhere in another
    pod; a snapshot in the Hugging Face cache counts as the model and the revision that it is of.
    """
    path = model.rstrip("/")
    snapshot = _SNAPSHOT.search(path)
    if snapshot is not None:
        return snapshot["name"].replace("--", "/", 1), snapshot["revision"]
    if path.startswith((".", "~", "/")) or path.count("/") > 1:
        path = path.rsplit("/", 1)[-1]
    return path, revision or ""
