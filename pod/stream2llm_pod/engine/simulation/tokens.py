"""Tokens and KV values that are functions of all tokens before them, so that equality of outputs means something."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Digests = NDArray[np.uint64]

_MASK = (1 << 64) - 1
_SEED = 0x9E3779B97F4A7C15
_FACTOR = 0xD1342543DE82EF95
FIRST_TOKEN = 3
"""Ids below are left to special tokens, as in most vocabularies."""


def extend_digest(digest: int, token_id: int) -> int:
    """The digest of a token sequence, given that of all but its last token."""
    return ((digest ^ (token_id + 1)) * _FACTOR + _SEED) & _MASK


def prefix_digests(token_ids: Iterable[int], digest: int = _SEED) -> Digests:
    """Shape [tokens]: element i is the digest of tokens 0 to i, `digest` being that of what came before."""
    digests = []
    for token_id in token_ids:
        digest = extend_digest(digest, token_id)
        digests.append(digest)
    return np.array(digests, dtype=np.uint64)


def next_token(digest: int, vocabulary: int) -> int:
    """The token that follows a sequence with this digest; its high bits decide, which depend on every token."""
    return FIRST_TOKEN + (digest >> 32) % (vocabulary - FIRST_TOKEN)


def expected_output(prompt: Sequence[int], output_tokens: int, vocabulary: int) -> list[int]:
    """What the simulated model answers to `prompt` in one request."""
    digest = _SEED
    for token_id in prompt:
        digest = extend_digest(digest, token_id)
    output: list[int] = []
    while len(output) < output_tokens:
        output.append(next_token(digest, vocabulary))
        digest = extend_digest(digest, output[-1])
    return output
