"""What one retrieval sends, and when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple


class Piece(NamedTuple):
    """A run of tokens without text. Pieces of one identity begin with the same tokens, those of two differ at once."""

    identity: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Message:
    """What arrives at one time: more of the prompt, or, where `replaces`, all of it anew."""

    after_s: float
    """Since the start of the retrieval."""
    pieces: tuple[Piece, ...]
    replaces: bool = False

    @property
    def tokens(self) -> int:
        return sum(piece.tokens for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Stream:
    """One retrieval: messages in the order of their times. The first one opens the stream, the last one finishes it."""

    name: str
    messages: tuple[Message, ...]
    starts_s: float = 0.0
    """When its retrieval begins, since the start of the run."""
    tenant: str = "default"

    @property
    def duration_s(self) -> float:
        return self.messages[-1].after_s

    @property
    def final_pieces(self) -> tuple[Piece, ...]:
        """The whole prompt at the finish."""
        pieces: list[Piece] = []
        for message in self.messages:
            if message.replaces:
                pieces.clear()
            pieces.extend(message.pieces)
        return tuple(pieces)

    @property
    def final_tokens(self) -> int:
        return sum(piece.tokens for piece in self.final_pieces)

    def waiting(self) -> Stream:
        """The same retrieval that sends nothing before it has everything."""
        return replace(self, messages=(Message(self.duration_s, self.final_pieces),))

    def slowed(self, factor: float) -> Stream:
        """All times since the start of the retrieval multiplied by `factor`."""
        return replace(
            self, messages=tuple(replace(message, after_s=message.after_s * factor) for message in self.messages)
        )

    def scaled(self, factor: float) -> Stream:
        """Every piece with `factor` times as many tokens, at least one."""

        def change(message: Message) -> Message:
            sizes = (Piece(piece.identity, max(round(factor * piece.tokens), 1)) for piece in message.pieces)
            return replace(message, pieces=tuple(sizes))

        return replace(self, messages=tuple(change(message) for message in self.messages))


def timeline(streams: Sequence[Stream]) -> list[tuple[float, int, int, Stream]]:
    """(seconds since the start of the run, number of the stream, place in it, the stream) of all messages, in the order
    of their times."""
    return sorted(
        (stream.starts_s + message.after_s, number, place, stream)
        for number, stream in enumerate(streams)
        for place, message in enumerate(stream.messages)
    )


def common_prefix(old: Sequence[Piece], new: Sequence[Piece]) -> int:
    """How many leading tokens two prompts share."""
    shared = 0
    for before, after in zip(old, new, strict=False):
        if before.identity != after.identity:
            break
        shared += min(before.tokens, after.tokens)
        if before.tokens != after.tokens:
            break
    return shared


def cut(pieces: Iterable[Piece], tokens: int) -> tuple[Piece, ...]:
    """The first `tokens` tokens of a prompt."""
    kept = []
    for piece in pieces:
        if tokens <= 0:
            break
        kept.append(Piece(piece.identity, min(piece.tokens, tokens)))
        tokens -= piece.tokens
    return tuple(kept)
