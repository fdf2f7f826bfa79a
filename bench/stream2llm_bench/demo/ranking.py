"""Ranks pages for a question by the words they share, rare ones first (BM25's idea, small enough to read)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

WORD = re.compile(r"[a-z0-9]{3,}")


def words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def rank(question: str, texts: Mapping[int, str]) -> list[int]:
    """The keys of `texts`, best page first; equal scores in the order of the keys."""
    asked = set(words(question))
    found = {key: words(text) for key, text in texts.items()}
    holding = {word: sum(word in content for content in found.values()) for word in asked}

    def score(content: Sequence[str]) -> float:
        return sum(
            math.log(1 + len(found) / holding[word]) * content.count(word) / (content.count(word) + 1)
            for word in asked
            if word in content
        )

    return sorted(found, key=lambda key: (-score(found[key]), key))
