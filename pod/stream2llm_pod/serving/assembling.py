"""From the text of a stream to the token ids of its prompt.

The final prompt is exactly what the tokenizer makes of the whole rendered text. Until the finish the ids are an
optimisation: they are handed out as soon as later text is unlikely to change them, and the finish sets right what
did change. So nothing here has to know how a tokenizer cuts text; guessing wrong costs time only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

# Tokens before a change that are made again, so that the tokenizer sees the text around it.
OVERLAP_TOKENS = 32
# Equal tokens in a row after which the new tokenisation is taken to be in step with the old one.
IN_STEP_TOKENS = 4
# Text without a blank (Chinese, long numbers) is not held back further than this.
HELD_BACK_CHARS = 64
# The same for a tokenizer that cannot say which characters a token stands for.
HELD_BACK_TOKENS = 8

Span = tuple[int, int]


class Encoder(Protocol):
    """A tokenizer."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Ids of `text`, with the tokenizer's own leading and trailing special tokens if `special`."""
        ...

    def encode_with_spans(self, text: str) -> tuple[list[int], list[Span]] | None:
        """Ids without special tokens and each one's characters [start, end); None where it cannot tell them."""
        ...

    def leading(self) -> list[int]:
        """The special tokens that `encode(…, special=True)` puts first."""
        ...


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt with one gap for the context.

    `whole` renders the complete text with a context: a chat template may trim or escape what stands in the gap, so
    it need not be `prefix + context + suffix`.
    """

    prefix: str
    suffix: str
    whole: Callable[[str], str]
    special: bool

    @classmethod
    def of_prompt(cls, prompt: str, marker: str, *, special: bool = True) -> Template:
        """A plain prompt. Raises ValueError unless the marker stands in it exactly once."""
        if prompt.count(marker) != 1:
            raise ValueError(f"the marker {marker!r} must stand in the prompt once, not {prompt.count(marker)} times")
        prefix, suffix = prompt.split(marker)
        return cls(prefix, suffix, lambda context: f"{prefix}{context}{suffix}", special)


@dataclass(frozen=True, slots=True)
class Change:
    """How a list of token ids became another: the first `keep` ids stay, `new` follow them."""

    keep: int
    new: list[int]


@dataclass(slots=True)
class TextAssembler:
    """Token ids of a growing or rewritten text; `ids` is what has been handed out so far."""

    encoder: Encoder
    template: Template
    ids: list[int] = field(default_factory=list)
    _text: str = ""
    _spans: list[Span] = field(default_factory=list)
    _lead: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.template.special:
            self._lead = self.encoder.leading()

    def advance(self, context: str) -> Change:
        """Hand out the ids of the prefix and of `context` but for the end that later text may still change."""
        text = self.template.prefix + context
        grows = text.startswith(self._text)
        kept, ids, spans = self._encode_from_change(text)
        self._text = text
        if spans:
            # A token may end in blanks that its span leaves out, and more blanks may follow: keep one back for that.
            settled = max(_tokens_within(spans, held_back_from(text)) - 1, 0)
        else:
            settled = max(len(ids) - HELD_BACK_TOKENS, 0)
        new = ids[:settled]
        lead = len(self._lead)
        if not self.ids:
            self.ids = [*self._lead, *new] if new else []
            self._spans = spans[:settled]
            return Change(0, list(self.ids))
        common = common_prefix(self.ids[lead + kept :], new)
        if grows and common == len(new):
            return Change(len(self.ids), [])
        change = Change(lead + kept + common, new[common:])
        self.ids[change.keep :] = change.new
        self._spans[kept:] = spans[:settled]
        return change

    def complete(self, context: str) -> list[int]:
        """The ids of the whole prompt, as one request with the whole text would have them."""
        return self.encoder.encode(self.template.whole(context), special=self.template.special)

    def _encode_from_change(self, text: str) -> tuple[int, list[int], list[Span]]:
        """(number of old ids that stay, ids after them, their spans) for `text` without its special tokens."""
        old = self.ids[len(self._lead) :]
        unchanged = common_prefix_chars(self._text, text)
        settled = _tokens_within(self._spans, unchanged)
        start = settled - OVERLAP_TOKENS
        while start > 0 and self._spans[start][0] < self._spans[start - 1][1]:
            start -= 1
        if start > 0:
            offset = self._spans[start - 1][1]
            encoded = self.encoder.encode_with_spans(text[offset:])
            if encoded is not None:
                ids, spans = encoded[0], [(a + offset, b + offset) for a, b in encoded[1]]
                step = _in_step(old[start:settled], self._spans[start:settled], ids, spans)
                if step is not None:
                    return start + step[0], ids[step[1] :], spans[step[1] :]
        encoded = self.encoder.encode_with_spans(text)
        if encoded is None:
            return 0, self.encoder.encode(text, special=False), []
        return 0, encoded[0], encoded[1]


@dataclass(slots=True)
class TokenAssembler:
    """Token ids of a stream whose context is token ids already: they go as they are between prefix and suffix."""

    encoder: Encoder
    template: Template
    ids: list[int] = field(default_factory=list)
    _prefix: list[int] | None = None

    def advance(self, context: Sequence[int]) -> Change:
        """Hand out the ids of the prefix and of `context`, which only ever grows."""
        prefix = self._prefix_ids()
        new = [*prefix, *context] if not self.ids else list(context[len(self.ids) - len(prefix) :])
        change = Change(len(self.ids), new)
        self.ids.extend(new)
        return change

    def complete(self, context: Sequence[int]) -> list[int]:
        """The ids of the whole prompt."""
        return [*self._prefix_ids(), *context, *self.encoder.encode(self.template.suffix, special=False)]

    def _prefix_ids(self) -> list[int]:
        if self._prefix is None:
            lead = self.encoder.leading() if self.template.special else []
            self._prefix = [*lead, *self.encoder.encode(self.template.prefix, special=False)]
        return self._prefix


def held_back_from(text: str) -> int:
    """Where the end of `text` begins that later text may merge with: its last word and the blanks before it."""
    word_ends = len(text.rstrip())
    earliest = max(word_ends - HELD_BACK_CHARS, 0)
    position = word_ends
    while position > earliest and not text[position - 1].isspace():
        position -= 1
    if position == earliest and earliest > 0:
        return earliest
    while position > 0 and text[position - 1].isspace():
        position -= 1
    return position


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix of two lists of ids."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])


def common_prefix_chars(a: str, b: str) -> int:
    """Length of the longest common prefix of two texts, by comparing slices: a chunk is long, Python's loop slow."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _tokens_within(spans: Sequence[Span], end: int) -> int:
    """How many leading tokens lie wholly before character `end`."""
    count = len(spans)
    while count and spans[count - 1][1] > end:
        count -= 1
    return count


def _in_step(
    old: Sequence[int], old_spans: Sequence[Span], new: Sequence[int], new_spans: Sequence[Span]
) -> tuple[int, int] | None:
    """Indices (i, j) from which `new[j:]` may replace `old[i:]`: the last tokens before them agree in id and place."""
    place = {(token, span[1]): j for j, (token, span) in enumerate(zip(new, new_spans, strict=True))}
    run = 0
    for i, (token, span) in enumerate(zip(old, old_spans, strict=True)):
        j = place.get((token, span[1]))
        follows = j is not None and run and place.get((old[i - 1], old_spans[i - 1][1])) == j - 1
        run = 0 if j is None else run + 1 if follows else 1
        if j is not None and run >= IN_STEP_TOKENS:
            return i + 1, j + 1
    return None
