"""The least time to first token: infinite memory and a machine of one's own for each stream. Pure."""

from __future__ import annotations

from stream2llm_bench.simulating.hardware import Hardware
from stream2llm_bench.workloads.streams import Message, Piece, Stream, common_prefix


def lower_bound_s(stream: Stream, hardware: Hardware, budget_tokens: int) -> float:
    """Seconds from the last message to the first token, in steps of `budget_tokens` that begin as soon as there is
    something to compute. A message that falls into a step takes effect after it.

    No schedule of this hardware that begins a step whenever it can is faster; one that left the machine idle until the
    last message came could be, by the rest of a step.
    """
    now_s, computed = 0.0, 0
    pieces: tuple[Piece, ...] = ()
    waiting = list(stream.messages)
    known = 0
    while waiting or computed < known:
        while waiting and (waiting[0].after_s <= now_s or computed >= known):
            message = waiting.pop(0)
            now_s = max(now_s, message.after_s)
            shared, pieces = _apply(message, pieces)
            known = sum(piece.tokens for piece in pieces)
            computed = min(computed, shared)
            if not waiting:
                # One token is always left to compute at the finish.
                computed = min(computed, known - 1)
        end = min(computed + budget_tokens, known)
        if end > computed:
            now_s += (hardware.step_ms + hardware.span_ms(computed, end)) / 1e3
            computed = end
    return now_s - stream.duration_s


def _apply(message: Message, pieces: tuple[Piece, ...]) -> tuple[int, tuple[Piece, ...]]:
    """(tokens that stay valid, the new prompt)."""
    if not message.replaces:
        return sum(piece.tokens for piece in pieces), (*pieces, *message.pieces)
    return common_prefix(pieces, message.pieces), message.pieces
