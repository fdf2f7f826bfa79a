"""How a stream's operations travel to the engine core.

An operation rides in `SamplingParams.extra_args["stream2llm"]` of an ordinary engine request, which survives the
serialisation between the API server and the engine core. The first request (`open`) goes through vLLM's public
`generate`; later ones carry the same internal request id.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

EXTRA_ARGS_KEY = "stream2llm"


class OpKind(StrEnum):
    """What an engine request does to its stream."""

    OPEN = "open"
    APPEND = "append"
    UPDATE = "update"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class Op:
    """One operation.

    kind: what to do; last: the prompt is whole afterwards; empty: the request's token list is only the placeholder
    that vLLM insists on and adds nothing; carried: with an open, the first tokens of the answer, which another engine
    has given and which the whole prompt will end in.
    """

    kind: OpKind
    last: bool = False
    empty: bool = False
    carried: tuple[int, ...] = ()

    def to_extra_args(self) -> dict[str, Any]:
        raw: dict[str, Any] = {"op": str(self.kind), "last": self.last, "empty": self.empty}
        if self.carried:
            raw["carried"] = list(self.carried)
        return {EXTRA_ARGS_KEY: raw}


def read_op(extra_args: dict[str, Any] | None) -> Op | None:
    """The operation in a request's extra arguments; None for an ordinary request.

    Raises ValueError for one that is not of this form (a client of the plain OpenAI API may write anything there).
    """
    raw = extra_args.get(EXTRA_ARGS_KEY) if extra_args else None
    if raw is None:
        return None
    if not isinstance(raw, dict):
        raise ValueError(f"{EXTRA_ARGS_KEY} must be an object, not {type(raw).__name__}")
    try:
        kind = OpKind(str(raw.get("op")))
    except ValueError:
        raise ValueError(f"{EXTRA_ARGS_KEY}.op {str(raw.get('op'))[:40]!r} is none of {', '.join(OpKind)}") from None
    carried = raw.get("carried", ())
    if not isinstance(carried, list | tuple) or any(type(token_id) is not int for token_id in carried):
        raise ValueError(f"{EXTRA_ARGS_KEY}.carried must be a list of token ids, not {str(carried)[:40]!r}")
    return Op(kind, bool(raw.get("last", False)), bool(raw.get("empty", False)), tuple(carried))
